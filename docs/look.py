"""Opens the built site in headless Chromium, and looks for what a reader would stumble over.

    python docs/look.py [SITE] [--pictures FOLDER]

Opens every page of SITE (default: build/docs/html), 390 and 1280 pixels wide, light and dark. No
page may scroll sideways, nor report an error to the console; and a search must find a public name.
Prints each fault. Some pages are drawn as a reader sees them first, into FOLDER (default:
build/docs/look).

Needs the package playwright and a Chromium, but not the browsers that playwright downloads.

Exit status: 0 all is well; 1 there are faults; 2 Chromium or the site is missing.
"""

import argparse
import os
import pathlib
import shutil
import sys

from playwright import sync_api

BUILD = pathlib.Path(__file__).resolve().parents[1] / "build" / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {390: 844, 1280: 900}
MODES = ("light", "dark")
# What is searched for, and the reference's anchor that must be among what is found.
SEARCH, FOUND = "embedding_bag", "#tf_ti.embedding_bag"
DRAWN = (
    "index.html",
    "install.html",
    "tutorials/loops.html",
    "coming-from/torch-embedding-bag.html",
    "how-to/deploy.html",
    "explain/fission.html",
    "reference/loops.html",
    "reference/environment.html",
    "figures/index.html",
    "notebooks/loops.html",
    "develop/index.html",
    "develop/architecture.html",
    "develop/your-own-op.html",
)
# How much wider the page is than the window, and the elements to blame: the innermost ones that
# reach beyond it and lie in nothing that scrolls by itself.
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  const excess = document.scrollingElement.scrollWidth - innerWidth;
  if (excess <= 0) return null;
  const clips = element => {
    for (let e = element.parentElement; e && e !== document.body; e = e.parentElement) {
      if (getComputedStyle(e).overflowX !== "visible") return true;
    }
    return false;
  };
  const wide = [...document.body.querySelectorAll("*")].filter(e =>
    e.getBoundingClientRect().right > width + 0.5 && !clips(e));
  const blamed = wide.filter(e => !wide.some(other => other !== e && e.contains(other)));
  return `${excess} pixels: ` + blamed.slice(0, 3).map(e =>
    `<${e.tagName.toLowerCase()} class="${e.className}"> ` + e.textContent.trim().slice(0, 50)
  ).join("; ");
}"""


class Look:
    """A look at one site: `faults` has what was found, in words."""

    def __init__(self, page: sync_api.Page, site: pathlib.Path, pictures: pathlib.Path):
        self.faults: list[str] = []
        self._page = page
        self._site = site
        self._pictures = pictures
        self._errors: list[str] = []
        page.on("console", lambda line: line.type == "error" and self._errors.append(line.text))
        page.on("pageerror", lambda error: self._errors.append(str(error)))

    def look_at(self, name: str) -> None:
        """Loads a page once, and sees how it fits each width and mode."""
        self._open(name)
        for width, height in SIZES.items():
            self._page.set_viewport_size({"width": width, "height": height})
            for mode in MODES:
                self._page.emulate_media(color_scheme=mode)
                if excess := self._page.evaluate(OVERFLOW):
                    self._add(name, f"at {width}, {mode}, it scrolls sideways by {excess}")
                if name in DRAWN:
                    picture = f"{name.removesuffix('.html').replace('/', '-')}-{width}-{mode}.png"
                    self._page.screenshot(path=self._pictures / picture)
        for error in self._errors:
            self._add(name, f"console: {error}")

    def search(self) -> None:
        """Looks for a name as a reader does, who has the site as files."""
        name = f"search.html?q={SEARCH}"
        self._open(name)
        try:
            # Results appear one by one; Sphinx then says how many there are.
            self._page.wait_for_selector(f'#search-results a[href*="{FOUND}"]', timeout=20_000)
        except sync_api.TimeoutError:
            self._add(name, f"finds no {FOUND}")
        if excess := self._page.evaluate(OVERFLOW):
            self._add(name, f"its results scroll sideways by {excess}")
        for error in self._errors:
            self._add(name, f"console: {error}")

    def _open(self, name: str) -> None:
        self._errors.clear()
        self._page.goto(f"{self._site.as_uri()}/{name}", wait_until="load")

    def _add(self, name: str, fault: str) -> None:
        self.faults.append(f"{name}: {fault}")
        print(self.faults[-1], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", nargs="?", type=pathlib.Path, default=BUILD / "html")
    parser.add_argument("--pictures", type=pathlib.Path, default=BUILD / "look")
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("no Chromium: apt-get install chromium")
        return 2
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    if "index.html" not in pages:
        print(f"no site in {site}: make docs")
        return 2
    shutil.rmtree(arguments.pictures, ignore_errors=True)
    arguments.pictures.mkdir(parents=True)
    with sync_api.sync_playwright() as playwright:
        # As root, Chromium has no sandbox; it opens nothing but our own pages.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=browser, args=flags)
        look = Look(chromium.new_page(), site, arguments.pictures)
        for name in pages:
            look.look_at(name)
        look.search()
        chromium.close()
    print(f"{len(pages)} pages, {len(look.faults)} faults; pictures: {arguments.pictures}")
    return 1 if look.faults else 0


if __name__ == "__main__":
    sys.exit(main())
