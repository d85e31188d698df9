// Keeps the page as the server sees it: sections come rendered, once a second, while the tab is looked at.
'use strict';
const at = (id) => document.getElementById(id);
const live = at('live'), find = at('find'), sort = at('sort'), q = at('q'), filter = at('filter'), pause = at('pause');
const refetch = live.dataset.refetch === 'true'; // one worker's, image's or decision's page: not pushed, but fetched again
let source, last = 0;

function put(id, html) {
  const section = at(id), chosen = document.getSelection();
  if (!section || section.innerHTML === html || !chosen.isCollapsed && section.contains(chosen.anchorNode)) return;
  if (id === 'decisions' && pause?.ariaPressed === 'true') return;
  const active = section.contains(document.activeElement) && document.activeElement, href = active && active.getAttribute('href');
  const key = active && active.parentNode.dataset.key, open = [...section.querySelectorAll('[data-key]')].map((d) => [d.dataset.key, d.open]);
  section.innerHTML = html;
  if (id === 'fleet') arrange();
  if (id === 'plots') point();
  for (const d of section.querySelectorAll('[data-key]')) d.open = open.find(([k]) => k === d.dataset.key)?.[1] ?? d.open;
  if (active) section.querySelector(href ? `[href="${CSS.escape(href)}"]` : `[data-key="${CSS.escape(key)}"] > summary`)?.focus({ preventScroll: true });
}

// What is wrong is told in words beside the mark's colour.
function counted() {
  return ['error', 'warning', 'note'].map((is) => [document.querySelectorAll('.of-' + is).length, is]).filter(([n]) => n)
    .map(([n, is]) => `, ${n} ${is}${n > 1 ? 's' : ''}`).join('');
}

function say(text, on) {
  live.textContent = text;
  live.classList.toggle('on', on);
}

async function again() {
  if (Date.now() - last < 2000) return;
  last = Date.now();
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  for (const section of page.querySelectorAll('section[id]')) put(section.id, section.innerHTML);
}

// The workers as they are looked for and sorted here; the server sends them worst first.
function arrange() {
  const strips = [...document.querySelectorAll('.strip')], by = sort.value, word = find.value.toLowerCase();
  for (const s of strips) s.hidden = !s.dataset.find.toLowerCase().includes(word);
  if (by === 'name') strips.sort((a, b) => a.dataset.name.localeCompare(b.dataset.name, undefined, { numeric: true }));
  else if (by) strips.sort((a, b) => (b.dataset[by] - a.dataset[by]) * (by === 'hits' ? -1 : 1));
  if (by) strips[0]?.parentNode.append(...strips);
}

// The plots' values under the pointer, the same moment in all of them.
let pointed = -1;
function point() {
  for (const svg of document.querySelectorAll('figure svg')) {
    const text = svg.parentNode.querySelector('.axis');
    text.dataset.axis ??= text.innerHTML;
    svg.querySelector('.cursor')?.remove();
    if (pointed < 0) { text.innerHTML = text.dataset.axis; continue; }
    const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    cursor.setAttribute('class', 'cursor');
    cursor.setAttribute('d', `M${pointed} 5V65`);
    svg.append(cursor);
    const top = parseFloat(svg.dataset.top) * (/M$/.test(svg.dataset.top) ? 1e6 : /k$/.test(svg.dataset.top) ? 1e3 : 1), said = [];
    for (const path of svg.querySelectorAll('path[class^=c]:not(.cursor)')) {
      const near = [...path.getAttribute('d').matchAll(/[ML]([\d.]+) ([\d.]+)/g)].map((m) => [Math.abs(m[1] - pointed), m[2]]).sort((a, b) => a[0] - b[0])[0];
      if (near && near[0] < 11) said.push(+((65 - near[1]) / 60 * top).toPrecision(3));
    }
    const mark = [...svg.querySelectorAll('.mark')].find((m) => Math.abs(m.getAttribute('d').slice(1).split(' ')[0] - pointed) < 3);
    text.textContent = `${Math.round((300 - pointed) / 300 * svg.dataset.seconds)} s ago: ${said.join(', ') || 'nothing known'}${mark ? '; ' + mark.dataset.what : ''}`;
  }
}
document.addEventListener('pointermove', (event) => {
  const svg = event.target.closest?.('figure svg'), was = pointed;
  pointed = -1;
  if (svg) pointed = Math.round(300 * event.offsetX / svg.clientWidth);
  if (pointed !== was) point();
});
document.addEventListener('keydown', (event) => {
  const by = { ArrowLeft: -5, ArrowRight: 5 }[event.key];
  if (!by || !/^(plots|hour)$/.test(event.target.id)) return;
  pointed = Math.min(300, Math.max(0, (pointed < 0 ? 300 : pointed) + by));
  event.preventDefault();
  point();
});
document.addEventListener('focusout', (event) => {
  if (/^(plots|hour)$/.test(event.target.id)) { pointed = -1; point(); }
});

const narrowed = () => filter?.value || q?.value;
function narrow() {
  const url = new URL(location);
  for (const field of [filter, q]) field.value ? url.searchParams.set(field.id, field.value) : url.searchParams.delete(field.id);
  history.replaceState(null, '', url);
  last = 0;
  again().catch(() => {});
}
find?.addEventListener('input', arrange);
sort?.addEventListener('change', arrange);
filter?.addEventListener('change', narrow);
q?.addEventListener('change', narrow);
pause?.addEventListener('click', () => {
  pause.ariaPressed = String(pause.ariaPressed !== 'true');
  pause.textContent = pause.ariaPressed === 'true' ? 'go on' : 'pause';
});

function listen() {
  source = new EventSource('/events');
  source.onopen = () => say('live' + counted(), true);
  source.onmessage = (event) => {
    say('live' + counted(), true);
    if (refetch) return void again().catch(() => {});
    for (const [id, html] of Object.entries(JSON.parse(event.data))) if (id !== 'decisions' || !narrowed()) put(id, html);
    if (narrowed()) again().catch(() => {});
  };
  source.onerror = () => {
    say('not live: trying again', false);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (!document.hidden) listen(); }, 5000);
  };
}

document.addEventListener('visibilitychange', () => {
  source.close();
  if (!document.hidden) listen();
});
listen();
