// What refreshes itself waits while somebody is inside it with the keyboard: the focus would be lost.
"use strict";

document.addEventListener("htmx:beforeRequest", (event) => {
  const { elt, requestConfig } = event.detail;
  const byItself = !requestConfig.triggeringEvent && elt.hasAttribute("data-live");
  const hidden = document.visibilityState === "hidden";
  if (byItself && (hidden || elt.contains(document.activeElement))) event.preventDefault();
});

// Jobs are shown anew also then, and the focus goes to the element that has the same place: htmx itself finds only
// those with an id.
const SAME = ["id", "href", "name", "value", "aria-label"];
const listAlike = (element) =>
  [...document.querySelectorAll(element.tagName)].filter((each) => SAME.every((name) => each.getAttribute(name) === element.getAttribute(name)));
let focused;
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  const element = document.activeElement;
  focused = detail.target.contains(element) ? { element, at: listAlike(element).indexOf(element) } : undefined;
});
document.addEventListener("htmx:afterSwap", () => {
  if (focused && !focused.element.isConnected) listAlike(focused.element)[focused.at]?.focus({ preventScroll: true });
  focused = undefined;
});

// That is when one changes, and as often as they say where there are no events. A hidden page has
// no stream: browsers allow six connections to a host.
const followed = () => document.querySelector("[data-events]");
let stream;
let pending;

const refresh = () => {
  pending = undefined;
  const part = followed();
  if (part) htmx.trigger(part, "job-changed");
  else stream.close();
};

const follow = () => {
  stream?.close();
  if (document.visibilityState === "hidden" || !followed()) return;
  stream = new EventSource(followed().dataset.events);
  stream.addEventListener("job", () => (pending ??= setTimeout(refresh, 500)));
};

document.addEventListener("visibilitychange", follow);
follow();
