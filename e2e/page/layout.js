// What holds in every size, by what is wanted: each function returns what is otherwise, or ''. The value is of those that are not ''.
(() => {
  const all = (of, within = document) => [...within.querySelectorAll(of)];
  const seen = (e) => e.offsetWidth > 0, box = (e) => e.getBoundingClientRect();
  const first = (list) => list.slice(0, 3).join(' | ');
  const strips = all('#fleet .strip').filter(seen);
  const wants = {
    'as many tiles in each row': () => first(all('.cards')
      .map((grid) => Object.values(Object.groupBy(grid.children, (e) => e.offsetTop)).map((row) => row.length))
      .filter((rows) => new Set(rows).size > 1)),
    "a name's end and its rank in sight": () => first(strips.filter((s) => {
      const text = s.querySelector('.name'), ranked = s.querySelector('.rank');
      const room = box(s), name = box(text), rank = ranked && box(ranked), last = rank ?? name;
      return [name, last].some((p) => p.width < 8 || p.right > room.right || p.bottom > room.bottom + 1) ||
        name.width < Math.min(60, text.scrollWidth - 1) || getComputedStyle(text).direction !== 'rtl' ||
        rank && rank.top < name.bottom - 2 && name.right > rank.left + 1 ||
        s.matches('a') && last.right > box(s.querySelector('.say')).left + 1;
    }).map((s) => s.innerText)),
    'what is wrong, figures, plots, then workers': () => {
      const tops = ['#problems', '#now', '#plots', '#fleet'].map((of) => box(document.querySelector(of)).top);
      return tops.every((top, i) => i === 0 || top > tops[i - 1]) ? '' : tops.join(' ');
    },
    'failures and the first byte first': () => {
      const tiles = all('#now .card').slice(0, 2).map((e) => e.innerText);
      return /requests failed/.test(tiles[0]) && /first byte/.test(tiles[1]) ? '' : first(tiles);
    },
    'figures of workers in columns': () => first(Object.values(Object.groupBy(all('#fleet .strip .say i, #fleet .strip td.n').filter(seen),
      (e) => e.dataset.l ?? (e.previousElementSibling ? 'in flight' : 'cached')))
      .filter((list) => new Set(list.map((e) => Math.round(box(e.closest('.strip')).right - box(e).right))).size > 1)
      .map((list) => list.map((e) => e.innerText).join(' '))),
    'the maximum at the axis of each plot': () => first(all('figure, .curve').filter((f) =>
      !/\d/.test(f.querySelector('.scale span')?.textContent)).map((f) => f.innerText)),
    'a name for each section': () => first(all('main section').filter((s) => !s.getAttribute('aria-label')).map((s) => s.id)),
    'headings in order': () => first(all('h1, h2, h3, h4').filter((h, i, list) => +h.tagName[1] > (i ? +list[i - 1].tagName[1] : 0) + 1)
      .map((h) => h.innerText)),
    '200 workers within 800 px where there is room': () => {
      const height = document.querySelector('.fleet')?.offsetHeight ?? 0;
      return innerWidth >= 1440 && height > 800 ? `${height} px` : '';
    },
    'what is wrong in words': () => first([
      ...all('.problems li').filter((p) => !/^[^a-z]{0,3}(error|warning|note)\b/.test(p.innerText.trim())),
      ...all('#fleet .bad1, #fleet .bad2, #fleet .bad3')
        .filter((s) => !/out|waiting|late \d+ s|in doubt/.test(s.querySelector('.say').textContent)),
    ].map((e) => e.innerText)),
    'lines told apart without colour': () => first(all('figure').filter((f) =>
      all('path.c2', f).some((p) => getComputedStyle(p).strokeDasharray === 'none') ||
      all('figcaption .c2', f).some((s) => getComputedStyle(s, '::before').borderTopStyle !== 'dashed')).map((f) => f.innerText)),
    'a fact in each cell, no sentences': () => first(all('.workers td:not([colspan])').filter((c) =>
      seen(c) && !/worker|state/.test(c.dataset.l) && (c.firstChild?.textContent ?? '').length > 20).map((c) => c.innerText)),
    'who shows what': () => {
      const says = all('.problems .who').map((p) => p.textContent), one = (of) => says.some((s) => of.test(s));
      const text = document.querySelector('.problems')?.textContent ?? '';
      return /refused/.test(text) && /i\/o timeout/.test(text) &&
        !(one(/^\S+: dial tcp 10.0.0.9:5557: connection refused$/) && one(/^\S+: dial tcp 10.0.0.7:5557: i\/o timeout$/)) ?
        first(says) || 'nobody' : '';
    },
    'nothing over something else': () => {
      const boxes = all('header > *, .tools > *, .card, figure, .problems li, #fleet .strip, .list tr, h2').filter(seen)
        .map((e) => [e, box(e)]);
      return first(boxes.flatMap(([e, r]) => boxes.filter(([f, q]) => !e.contains(f) && !f.contains(e) &&
        Math.min(r.right, q.right) - Math.max(r.left, q.left) > 2 && Math.min(r.bottom, q.bottom) - Math.max(r.top, q.top) > 2)
        .map(([f]) => `${e.innerText} over ${f.innerText}`)));
    },
    'text within its place': () => first(all('td, .card, summary, .problems p, figcaption, .scale, .axis').filter((e) =>
      seen(e) && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
      .map((e) => `${e.innerText}: ${e.scrollWidth} > ${e.clientWidth}`)),
    'room for a thumb': () => innerWidth > 1000 ? '' : first(
      all('a.strip, .tools button, .tools select, .tools input[type=search], summary')
        .filter((e) => seen(e) && box(e).height < 24).map((e) => `${e.innerText} ${box(e).height}`)),
    'what one needs at night': () => ['.plots figure', '#filter', '#q', '#pause', '#find',
      ...strips.length ? ['#decisions td[data-l=status]', "#decisions td[data-l='first byte']"] : []]
      .filter((of) => !all(of).some(seen)).join(' '),
  };
  return Object.fromEntries(Object.entries(wants).map(([want, got]) => [want, got()]).filter(([, got]) => got));
})()
