// Who may see: a browser signs in by the address that `meerkat console` prints, or by the server's token.

import { get, useToken, forget } from "../api.js";
import { command, el, failed } from "../dom.js";

export function show(main, why, enter) {
  const token = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const said = el("div", {});
  const send = async (event) => {
    event.preventDefault();
    useToken(token.value);
    try {
      await get("capabilities");
      await enter();
    } catch (failure) {
      forget();
      said.replaceChildren(failed(failure));
    }
  };
  main.replaceChildren(el(
    "div.sign-in", {},
    el("h1", {}, "Sign in"),
    why && el("p.why", { role: "alert" }, why),
    el("p", {}, "On the server's machine, in its folder:"),
    command("meerkat console"),
    el("p.hint", {}, "It opens this page with a code that works once, within a minute."),
    el("form", { onsubmit: send },
      el("label", { for: "token" }, "Or paste the server's token"),
      el("div.line", {}, token, el("button.main", { type: "submit" }, "Sign in")),
      el("p.hint", {}, el("code", {}, "meerkat token"), " prints it. It stays in this tab, and is forgotten when you close it."),
      said),
  ));
}
