// Packs the chosen input files into a tar archive and sends it; the form then names it.
"use strict";

const field = document.querySelector("[data-files]");
const form = field.closest("form");
const status = field.querySelector("[role=status]");
const [sandbox, named] = field.querySelectorAll("[type=hidden]");
const chosen = field.querySelector("[type=file]");
const vo = field.querySelector("select"); // null: the caller has one VO
const BLOCK = 512;
const encoder = new TextEncoder();

// Source: POSIX, pax, ustar interchange format.
const header = (name, size) => {
  const block = new Uint8Array(BLOCK);
  const write = (text, at) => block.set(encoder.encode(text), at);
  const octal = (number, digits) => `${number.toString(8).padStart(digits, "0")}\0`;
  write(name, 0);
  write(octal(0o755, 7), 100);
  write(octal(0, 7), 108);
  write(octal(0, 7), 116);
  write(octal(size, 11), 124);
  write(octal(0, 11), 136); // without times: equal files are one archive
  write(" ".repeat(8), 148);
  write("0", 156);
  write("ustar\x0000", 257);
  write(octal(block.reduce((sum, each) => sum + each, 0), 6), 148);
  return block;
};

const pack = (files) => {
  const parts = [];
  for (const file of files) {
    if (encoder.encode(file.name).length > 100) throw new Error(`${file.name}: its name has more than 100 bytes`);
    if (file.size >= 8 ** 11) throw new Error(`${file.name}: is larger than 8 GiB`);
    parts.push(header(file.name, file.size), file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)], { type: "application/x-tar" });
};

const send = async (files) => {
  const query = vo ? `?vo=${encodeURIComponent(vo.value)}` : "";
  const answer = await fetch(`/jobs/new/sandbox${query}`, {
    method: "PUT",
    headers: JSON.parse(document.body.getAttribute("hx-headers")),
    body: pack(files),
  });
  if (answer.ok) return (await answer.json()).sandbox;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  throw new Error(page.querySelector("main")?.textContent.trim().replace(/\s+/g, " ") ?? answer.statusText);
};

let turn = 0;
field.hidden = false;
const store = async () => {
  const files = [...chosen.files];
  const mine = (turn += 1);
  const buttons = form.querySelectorAll("button");
  const names = files.map((each) => each.name).join(", ");
  sandbox.value = named.value = "";
  status.textContent = files.length ? "Sending …" : "";
  buttons.forEach((each) => (each.disabled = files.length > 0));
  try {
    const stored = files.length ? await send(files) : "";
    if (mine !== turn) return;
    sandbox.value = stored;
    named.value = names.slice(0, 2000);
    status.textContent = names && `Stored: ${names}`;
  } catch (error) {
    if (mine !== turn) return;
    chosen.value = "";
    status.textContent = `Not stored, the job would go without input files: ${error.message}`;
  }
  if (mine === turn) buttons.forEach((each) => (each.disabled = false));
};
chosen.addEventListener("change", store);
vo?.addEventListener("change", async () => {
  // The page may have been loaded again since the files were chosen: only their names are left of them.
  const lost = chosen.files.length ? "" : named.value;
  await store();
  if (lost) status.textContent = `Choose the input files again, they were stored for another VO: ${lost}`;
});
