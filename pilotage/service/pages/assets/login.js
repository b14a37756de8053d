// The secret of a one-time link stands behind the #, which no server ever sees: it goes from there into the form.
"use strict";

function follow() {
  const form = document.getElementById("link");
  const secret = location.hash.slice(1);
  if (!secret) return;
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.link.value = secret;
  // Another person may have sent the link: the answer names the person that it signs in, and has a button.
  form.elements.look.value = "true";
  form.requestSubmit();
}

follow();
addEventListener("hashchange", follow);
