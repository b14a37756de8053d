// States since when a page that refreshes itself is not live: the service does not answer, or not as expected.
"use strict";

const offline = document.getElementById("offline");

const notLive = (event) => {
  if (event.detail.xhr?.status === 401) return; // signed out: the page is loaded again
  if (offline.hidden) offline.querySelector("time").textContent = new Date().toLocaleTimeString();
  offline.hidden = false;
};

document.addEventListener("htmx:sendError", notLive);
document.addEventListener("htmx:timeout", notLive);
document.addEventListener("htmx:responseError", (event) => event.detail.xhr.status >= 500 && notLive(event));
document.addEventListener("htmx:afterOnLoad", (event) => {
  if (event.detail.successful !== false) offline.hidden = true;
});
