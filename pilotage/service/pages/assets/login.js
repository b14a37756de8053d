// The secret of a one-time link stands behind the #, which no server ever sees: it goes from there into the form.
"use strict";

function follow() {
  const form = document.getElementById("link");
  const secret = location.hash.slice(1);
  if (!secret) return;
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.link.value = secret;
  // Who is signed in already may have been sent here to act as somebody else without noticing.
  if (!("signedIn" in form.dataset)) form.requestSubmit();
}

follow();
addEventListener("hashchange", follow);
