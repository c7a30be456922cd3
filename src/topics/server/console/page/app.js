// The shell: navigation, the key, messages, and the page for the place in the URL.
import { html, render, useEffect, useState } from "./html.js";
import { hasKey, isDown, lastAct, me, needsKey, useKey, whoAmI, can, isWhole } from "./api.js";
import { drop, go, link, messages, nextTheme, place, theme } from "./state.js";
import { Dialog, Icon } from "./parts.js";
import { LastAct, Palette } from "./palette.js";
import { Overview } from "./overview.js";
import { Topics } from "./topics.js";
import { Topic } from "./topic.js";
import { Routers } from "./routers.js";
import { Live } from "./live.js";
import { Server } from "./server.js";

const PAGES = [
  ["overview", "Overview", () => can("read")],
  ["topics", "Topics", () => can("read")],
  ["routers", "Routers", () => can("read")],
  ["live", "Live", () => can("admin") && isWhole()],
  ["server", "Server", () => can("read")],
];
const VIEWS = { overview: Overview, topics: Topics, routers: Routers, live: Live, server: Server };

function Key() {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    useKey(text).catch(() => {});
  };
  return html`<main class="gate"><form class="card" onSubmit=${submit}>
    <img src="console/icon.svg" alt="" width="40" height="40" />
    <h1>topics</h1>
    <p role="status">${needsKey.value}</p>
    <label>Key<input type="password" name="key" autocomplete="off" value=${text} autofocus
      onInput=${(event) => setText(event.target.value)} /></label>
    <button class="button main" disabled=${!text.trim()}>Open the console</button>
    <p class="faint">The key stays in this tab and is sent as a header only.</p>
  </form></main>`;
}

function Side({ current, onPalette, onCode }) {
  const { name, scopes, prefixes } = me.value;
  return html`<nav class="side" aria-label="Pages">
    <a class="brand" href=${link(["overview"])} aria-label="topics"><img src="console/icon.svg" alt="" /><span>topics</span></a>
    ${PAGES.filter(([, , isShown]) => isShown()).map(([id, title]) => html`
      <a class="item" href=${link([id])} aria-current=${id === current ? "page" : undefined}>
        <${Icon} name=${id} /> ${title}</a>`)}
    <button class="item" type="button" onClick=${onPalette}><${Icon} name="search" /> Find <kbd>Ctrl K</kbd></button>
    <div class="gap"></div>
    ${lastAct.value && html`<button class="item" type="button" onClick=${onCode}><${Icon} name="code" /> As code</button>`}
    <button class="item" type="button" onClick=${nextTheme}>
      <${Icon} name=${{ auto: "auto", light: "sun", dark: "moon" }[theme.value]} /> Theme: ${theme.value}</button>
    ${hasKey() && html`<button class="item" type="button" onClick=${() => useKey("").catch(() => {})}>
      <${Icon} name="key" /> Forget the key</button>`}
    <div class="who">${hasKey() ? name || "A key without a name" : "No keys: open to all"}<br />
      ${scopes.length === 4 ? "all scopes" : scopes.join(", ") || "no scopes"}
      ${prefixes.length > 0 && html`<br />only ${prefixes.join(", ")}`}</div>
  </nav>`;
}

function Messages() {
  return html`<div class="messages" role="status" aria-live="polite">
    ${messages.value.map(({ id, text, kind }) => html`<div key=${id} class=${`message ${kind}`}>
      <${Icon} name=${kind === "bad" ? "warn" : "check"} /> <span>${text}</span>
      <button type="button" aria-label="Dismiss" onClick=${() => drop(id)}><${Icon} name="close" /></button></div>`)}
  </div>`;
}

const isTyping = (target) => ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);

function App() {
  const [open, setOpen] = useState(""); // palette, code or keys
  useEffect(() => {
    whoAmI().catch(() => {});
    const retry = setInterval(() => {
      if (me.value === null && !needsKey.value) whoAmI().catch(() => {});
    }, 1000);
    return () => clearInterval(retry);
  }, []);
  useEffect(() => {
    let before = "";
    const press = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setOpen((now) => (now === "palette" ? "" : "palette"));
      } else if (!isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey) {
        if (event.key === "?") setOpen("keys");
        if (event.key === "/" && document.querySelector("input[type=search]")) {
          event.preventDefault();
          document.querySelector("input[type=search]").focus();
        } else if (event.key === "/") go(link(["topics"]));
        if (before === "g") PAGES.forEach(([id]) => id[0] === event.key && go(link([id])));
        before = event.key;
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const [current = "overview", name] = place.value.parts;
  useEffect(() => {
    document.title = `${name || current} · topics`;
    scrollTo(0, 0);
  }, [current, name]);
  if (needsKey.value) return html`<${Key} />`;
  if (me.value === null) return html`<main class="gate"><p role="status" class="faint">${isDown.value ? "The server cannot be reached; trying again." : "Asking the server."}</p></main>`;
  const View = VIEWS[current] || Overview;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    ${isDown.value && html`<div class="down" role="alert"><${Icon} name="warn" /> The server cannot be reached, or is not ready. This page goes on when it is back.</div>`}
    <div class="shell">
      <${Side} current=${current} onPalette=${() => setOpen("palette")} onCode=${() => setOpen("code")} />
      <main id="main" tabindex="-1">
        ${!can("read") ? html`<div class="card"><div class="empty"><strong>This key may not read</strong><p>Its scopes: ${me.value.scopes.join(", ") || "none"}.</p></div></div>`
          : current === "topics" && name ? html`<${Topic} key=${name} name=${name} />` : html`<${View} />`}
      </main>
    </div>
    ${open === "palette" && html`<${Palette} pages=${PAGES.filter(([, , isShown]) => isShown())} onClose=${() => setOpen("")} />`}
    ${open === "code" && html`<${LastAct} onClose=${() => setOpen("")} />`}
    ${open === "keys" && html`<${Keys} onClose=${() => setOpen("")} />`}
    <${Messages} />`;
}

const KEYS = [
  ["Ctrl K", "find anything"], ["/", "search topics"], ["g o, g t, g r, g l, g s", "go to a page"],
  ["↑ ↓ Enter", "walk through records"], ["Esc", "close"], ["?", "this list"],
];
const Keys = ({ onClose }) => html`<${Dialog} title="Keyboard" onClose=${onClose}><div class="stack"><h2>Keyboard</h2>
  <table><tbody>${KEYS.map(([keys, what]) => html`<tr><td><kbd>${keys}</kbd></td><td>${what}</td></tr>`)}</tbody></table></div><//>`;

render(html`<${App} />`, document.getElementById("app"));
