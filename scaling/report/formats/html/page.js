(function () {
  "use strict";
  var root = document.documentElement, find = function (q, of) { return [].slice.call((of || document).querySelectorAll(q)); };
  root.classList.add("js");
  var theme = document.getElementById("theme");
  theme.addEventListener("change", function () {
    if (theme.value === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", theme.value);
  });
  document.getElementById("open").addEventListener("click", function () {
    var all = find("details"), shut = all.some(function (one) { return !one.open; });
    all.forEach(function (one) { one.open = shut; });
  });
  var copy = document.getElementById("copy"), line = document.getElementById("command");
  if (copy) copy.addEventListener("click", function () {
    var range = document.createRange(), chosen = window.getSelection();
    range.selectNodeContents(line);
    chosen.removeAllRanges();
    chosen.addRange(range);
    copy.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl-C";
  });
  var closed = [];
  window.addEventListener("beforeprint", function () {
    closed = find("details:not([open])");
    closed.forEach(function (one) { one.open = true; });
  });
  window.addEventListener("afterprint", function () { closed.forEach(function (one) { one.open = false; }); });
  var table = document.getElementById("rows");
  if (!table) return;
  var body = table.tBodies[0], lines = find("tr", body), filter = document.getElementById("filter"), said = document.getElementById("shown");
  var show = function () {
    var words = filter.value.toLowerCase().split(/\s+/), count = 0;
    lines.forEach(function (line) {
      var text = line.textContent.toLowerCase();
      line.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
      count += line.hidden ? 0 : 1;
    });
    said.textContent = count + " of " + lines.length + " rows";
  };
  filter.addEventListener("input", show);
  show();
  find("thead th", table).forEach(function (head, at) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.textContent = "";
    head.appendChild(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      find("th", table).forEach(function (one) { one.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var key = function (line) { var cell = line.cells[at]; return cell.hasAttribute("data-v") ? cell.getAttribute("data-v") : cell.textContent.trim(); };
      var number = head.hasAttribute("data-n");
      lines.sort(function (one, other) {
        var a = key(one), b = key(other);
        if (a === "" || b === "") return (a === "") - (b === "");
        var sign = number ? a - b : a < b ? -1 : a > b ? 1 : 0;
        return down ? -sign : sign;
      });
      lines.forEach(function (line) { body.appendChild(line); });
    });
  });
})();
