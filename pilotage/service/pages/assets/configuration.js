// The draft of a change: line numbers, rows, and a copy in the browser until it is applied.
(() => {
  "use strict";

  const form = document.getElementById("draft");
  if (!form) return;
  const ours = `pilotage-draft ${form.dataset.draft} `;
  const way = form.elements.way.value;
  const section = form.elements.section.value;
  const key = `${ours}${way} ${section}`;
  const text = form.querySelector("[data-lines]");
  const rows = form.querySelector("[data-rows]");
  const kept = ["version", "text", "message", "guard"];

  function store(value) {
    try {
      if (value === null) localStorage.removeItem(key);
      else localStorage.setItem(key, JSON.stringify(value));
    } catch { /* the browser keeps nothing: the page works without */ }
  }

  function stored() {
    try {
      return JSON.parse(localStorage.getItem(key));
    } catch {
      return null;
    }
  }

  function read() {
    const draft = { way, section };
    for (const name of kept) if (form.elements[name]) draft[name] = form.elements[name].value;
    if (rows) {
      draft.rows = [...rows.children].map((row) =>
        ["path", "action", "value"].map((name) => row.querySelector(`[name="${name}"]`).value));
    }
    return draft;
  }

  function write(draft) {
    for (const name of kept) {
      if (form.elements[name] && typeof draft[name] === "string") form.elements[name].value = draft[name];
    }
    if (rows && Array.isArray(draft.rows)) {
      rows.replaceChildren();
      for (const [path, action, value] of draft.rows) {
        const row = addRow();
        row.querySelector('[name="path"]').value = path;
        row.querySelector('[name="action"]').value = action;
        row.querySelector('[name="value"]').value = value;
      }
    }
  }

  function addRow() {
    const template = form.querySelector("template[data-row]");
    rows.append(template.content.cloneNode(true));
    const row = rows.lastElementChild;
    row.querySelector("[data-drop-row]").hidden = false;
    if (window.htmx) window.htmx.process(row);
    return row;
  }

  function changed() {
    store(read());
    form.dispatchEvent(new Event("recheck"));
  }

  function number() {
    const gutter = form.querySelector("[data-gutter]");
    const lines = text.value.split("\n").length;
    gutter.textContent = Array.from({ length: lines }, (_, index) => index + 1).join("\n");
    gutter.scrollTop = text.scrollTop;
  }

  // Drafts that were begun in other places, such as before the session ended.
  function elsewhere() {
    const note = document.querySelector("[data-other-drafts]");
    for (const other of Object.keys(localStorage).filter((each) => each.startsWith(ours) && each !== key)) {
      const draft = JSON.parse(localStorage.getItem(other));
      const link = document.createElement("a");
      link.href = `/configuration?${new URLSearchParams({ path: draft.section, as: draft.way })}#draft`;
      link.textContent = draft.section || "the top";
      note.append(" ", link);
      note.hidden = false;
    }
  }

  const begun = read();
  if (document.querySelector("[data-applied]")) {
    store(null);
  } else {
    const before = stored();
    const asked = new URLSearchParams(location.search).has("set");
    const same = JSON.stringify({ ...before, version: "" }) === JSON.stringify({ ...begun, version: "" });
    if (before && !same && !asked && location.pathname === "/configuration") {
      write(before);
      const note = form.querySelector("[data-restored]");
      note.querySelector("[data-restored-version]").textContent = before.version;
      note.hidden = false;
      note.querySelector("[data-discard]").addEventListener("click", () => {
        store(null);
        write(begun);
        note.hidden = true;
        if (text) number();
        form.dispatchEvent(new Event("recheck"));
        (text || rows.querySelector("input")).focus();
      });
      window.addEventListener("load", () => form.dispatchEvent(new Event("recheck")));
    } else if (location.pathname !== "/configuration") {
      store(begun); // the page came back with the draft: what it says now is the draft
    }
  }

  try {
    elsewhere();
  } catch { /* nothing is kept, or nothing that we can read */ }
  form.addEventListener("input", () => store(read()));
  if (text) {
    text.addEventListener("input", number);
    text.addEventListener("scroll", number);
    number();
  }
  if (rows) {
    const add = form.querySelector("[data-add-row]");
    add.hidden = false;
    add.addEventListener("click", () => {
      addRow().querySelector("input").focus();
    });
    for (const drop of rows.querySelectorAll("[data-drop-row]")) drop.hidden = false;
    rows.addEventListener("click", (event) => {
      if (!event.target.matches("[data-drop-row]")) return;
      event.target.closest("li").remove();
      if (!rows.children.length) addRow();
      add.focus();
      changed();
    });
  }
})();
