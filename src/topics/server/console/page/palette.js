// Find anything: pages, topics, acts. And the last act as a command.
import { html, useEffect, useState } from "./html.js";
import { get, lastAct, query } from "./api.js";
import { asCommand, asCurl, asPython } from "./code.js";
import { go, link, nextTheme, toTopic } from "./state.js";
import { Command, Dialog, Icon, Tabs } from "./parts.js";

export function Palette({ pages, onClose }) {
  const [text, setText] = useState("");
  const [names, setNames] = useState([]);
  const [at, setAt] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    const ask = async () => {
      const fields = { detail: true, contains: text, prefix: "", page_size: text ? 100 : 8 };
      const { topics } = await get(`topics${query(fields)}`, { signal: abort.signal });
      setNames(topics.map(({ topic }) => topic).filter((name) => name.includes(text)).slice(0, 8));
      setAt(0);
    };
    ask().catch(() => {});
    return () => abort.abort();
  }, [text]);
  const wanted = text.toLowerCase();
  const found = [
    ...names.map((name) => ["topics", name, () => go(toTopic(name))]),
    ...pages.map(([id, title]) => [id, title, () => go(link([id]))]),
    ["auto", "Change the theme", nextTheme],
    ["code", "Description of the API", () => open(new URL("docs", document.baseURI).href, "_blank", "noopener")],
  ].filter(([kind, title]) => kind === "topics" || title.toLowerCase().includes(wanted));
  const press = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((at + step + found.length) % found.length);
    } else if (event.key === "Enter" && found[at]) {
      event.preventDefault();
      onClose();
      found[at][2]();
    }
  };
  return html`<${Dialog} title="Find" onClose=${onClose} className="palette">
    <input class="find" placeholder="Find a topic, a page, an act" aria-label="Find" role="combobox" aria-expanded="true"
      aria-controls="found" aria-activedescendant=${found.length ? `found-${at}` : undefined} autocomplete="off" autofocus
      value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${press} />
    <ul id="found" role="listbox" aria-label="Found">${found.map(([icon, title, act], n) => html`
      <li key=${icon + title} id=${`found-${n}`} role="option" aria-selected=${String(n === at)}
        onClick=${() => { onClose(); act(); }} onMouseMove=${() => setAt(n)}><${Icon} name=${icon} /> <span class="wrap">${title}</span></li>`)}</ul>
  <//>`;
}

// --- the last act as a command

export function LastAct({ onClose }) {
  const [kind, setKind] = useState("curl");
  const act = lastAct.value;
  const text = { curl: asCurl, cli: asCommand, python: asPython }[kind](act);
  return html`<${Dialog} title="The last act as code" onClose=${onClose}><div class="stack">
    <h2>The last act as code</h2>
    <p class="faint"><code class="wrap">${act.method} ${act.target}</code></p>
    <${Tabs} label="Language" tabs=${[["curl", "curl"], ["cli", "CLI"], ["python", "Python"]]} current=${kind} onSelect=${setKind} />
    ${text === null ? html`<p class="faint pad">The command line has no command for this; use curl.</p>` : html`<${Command} text=${text} />`}
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Close</button></div>
  </div><//>`;
}
