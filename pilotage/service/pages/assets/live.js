// What refreshes itself waits while somebody is inside it with the keyboard: the focus would be lost.
"use strict";

document.addEventListener("htmx:beforeRequest", (event) => {
  const { elt, requestConfig } = event.detail;
  const byItself = !requestConfig.triggeringEvent && elt.hasAttribute("data-live");
  const hidden = document.visibilityState === "hidden";
  if (byItself && (hidden || elt.contains(document.activeElement))) event.preventDefault();
});
