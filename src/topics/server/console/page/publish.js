// A box to write a record by hand. What is typed is sent as it is spelled.
import { html, useState } from "./html.js";
import { call, path } from "./api.js";
import { attempt } from "./state.js";
import { number } from "./format.js";
import { Card } from "./parts.js";

const problem = (text) => {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return error.message;
  }
};

export function Publish({ name, isQueue, onWritten }) {
  const [text, setText] = useState('{"hello": "world"}');
  const [tag, setTag] = useState("");
  const [node, setNode] = useState("");
  const wrong = problem(text);
  const submit = async (event) => {
    event.preventDefault();
    const more = { ...(tag ? { tag } : {}), ...(node ? { node } : {}) };
    const rest = JSON.stringify(more).slice(1, -1);
    const body = `{"records":[{"data":${text}${rest ? `,${rest}` : ""}}]}`;
    const written = await attempt(() => call("POST", `topics/${path(name)}`, body));
    if (written) {
      await attempt(async () => written, `Written as ${number(written.last_seq)}`);
      onWritten();
    }
  };
  return html`<${Card} title=${isQueue ? "Add a job" : "Write a record"}><form class="body publish" onSubmit=${submit}>
    <label class="data">Data, as JSON<textarea rows="4" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)} aria-invalid=${String(Boolean(wrong))} aria-describedby="publish-wrong"></textarea></label>
    <div class="more"><label>Tag<input value=${tag} onInput=${(event) => setTag(event.target.value)} autocomplete="off" /></label>
      <label>Node<input value=${node} onInput=${(event) => setNode(event.target.value)} autocomplete="off" /></label>
      <button class="button main" disabled=${Boolean(wrong)}>Write</button></div>
    <p id="publish-wrong" class="danger-text" role="status">${wrong && `This is not JSON yet: ${wrong}`}</p>
  </form><//>`;
}
