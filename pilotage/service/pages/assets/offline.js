// States since when a page that refreshes itself is not live: the service does not answer, or not as expected.
// What follows a stream of events asks as well, so that a stream that hangs is noticed in the same way.
"use strict";

const offline = document.getElementById("offline");
let answered = new Date();

const notLive = (event) => {
  if (event.detail.xhr?.status === 401) return; // signed out: the page is loaded again
  offline.querySelector("time").textContent = answered.toLocaleTimeString();
  offline.hidden = false;
};

document.addEventListener("htmx:sendError", notLive);
document.addEventListener("htmx:timeout", notLive);
document.addEventListener("htmx:responseError", (event) => event.detail.xhr.status >= 500 && notLive(event));
document.addEventListener("htmx:afterOnLoad", (event) => {
  if (event.detail.successful === false) return;
  answered = new Date();
  offline.hidden = true;
});
