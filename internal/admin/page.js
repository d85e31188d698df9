// Keeps the page as the server sees it: sections come rendered, once a second, while the tab is looked at.
'use strict';
const live = document.getElementById('live');
const refetch = live.dataset.refetch === 'true'; // one worker's, image's or decision's page: not pushed, but fetched again
let source, last = 0;

function put(id, html) {
  const section = document.getElementById(id), chosen = document.getSelection();
  if (!section || section.innerHTML === html || !chosen.isCollapsed && section.contains(chosen.anchorNode)) return;
  const focused = section.contains(document.activeElement) && document.activeElement.getAttribute('href');
  section.innerHTML = html;
  if (focused) section.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
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

function listen() {
  source = new EventSource('/events');
  source.onopen = () => say('live', true);
  source.onmessage = (event) => {
    if (refetch) return void again().catch(() => {});
    for (const [id, html] of Object.entries(JSON.parse(event.data))) put(id, html);
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
