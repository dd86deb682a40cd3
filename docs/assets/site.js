// What the theme leaves out for readers with a keyboard or a screen reader, as axe-core reports it.
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  // Lists inside the navigation, and the buttons of a block of code, are no landmarks of the page.
  for (const nav of document.querySelectorAll(".md-nav .md-nav, .md-code__nav")) nav.setAttribute("role", "group");
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .figure, .formula, p:has(> img)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
for (const event of ["load", "resize"]) addEventListener(event, complete);
complete();
