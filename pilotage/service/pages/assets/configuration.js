// The draft of a change: line numbers, rows, and a copy in the browser until it is applied.
(() => {
  "use strict";

  const form = document.getElementById("draft");
  if (!form) return;
  const key = `pilotage-draft ${form.dataset.draft}`;
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
    const draft = {};
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

  const begun = read();
  if (document.querySelector("[data-applied]")) {
    store(null);
  } else if (form.dataset.kept === undefined) {
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
