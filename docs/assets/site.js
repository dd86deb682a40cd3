// What the theme leaves out for readers with a keyboard or a screen reader, as axe-core reports it.
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  // The buttons of a block of code are no landmark of the page; the parts of the menu each need a name of their own.
  for (const nav of document.querySelectorAll(".md-code__nav")) nav.setAttribute("role", "none");
  for (const [number, nav] of document.querySelectorAll(".md-nav .md-nav[aria-labelledby]").entries()) {
    const title = document.getElementById(nav.getAttribute("aria-labelledby"))?.textContent.trim();
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", `Menu ${number + 1}: ${title}`);
  }
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .figure, .formula, p:has(> img)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
for (const event of ["load", "resize"]) addEventListener(event, complete);
complete();
