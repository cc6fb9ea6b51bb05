"""Pictures of pages, compared by the browser itself: it decodes them, and counts pixels."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from playwright.sync_api import Browser, Page

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
FONTS: Final = FOLDER / "fonts.json"
"""Widths of some words in the fonts of the screenshots. With other fonts, all of them differ."""

MOST: Final = 0.012
"""The share of pixels that may differ: times pass, and minutes begin elsewhere in the hour."""

_MEASURE = """() => {
  const context = document.createElement("canvas").getContext("2d");
  const families = [document.body, document.querySelector("code, pre, kbd") ?? document.body]
    .map((element) => getComputedStyle(element).fontFamily);
  const samples = ["Errors that retries hide 0123456789", "mWiIlL✗✓▶…◷‖"];
  return families.flatMap((family) => samples.map((text) => {
    context.font = `100px ${family}`;
    return Math.round(context.measureText(text).width);
  }));
}"""

_COMPARE = """async ([first, second, least]) => {
  const pixels = async (encoded) => {
    const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height);
  };
  const [one, other] = [await pixels(first), await pixels(second)];
  const sizes = [[one.width, one.height], [other.width, other.height]];
  if (one.width !== other.width || one.height !== other.height) return { sizes, share: 1 };
  let count = 0;
  for (let place = 0; place < one.data.length; place += 4) {
    const apart = (channel) => Math.abs(one.data[place + channel] - other.data[place + channel]);
    if (Math.max(apart(0), apart(1), apart(2)) > least) count += 1;
  }
  return { sizes, share: count / (one.data.length / 4) };
}"""

_VISIBLE = 48
"""By how much a channel has to differ, of 255: less is how edges are smoothed."""


class Compared(Struct, frozen=True):
    """Differences between two screenshots."""

    sizes: list[tuple[int, int]]
    share: float
    """Of the pixels; 1 if the sizes differ."""


def compare(browser: Browser, first: bytes, second: bytes) -> Compared:
    """Compare two pictures, given as PNG."""
    encoded = [base64.b64encode(each).decode() for each in (first, second)]
    context = browser.new_context()
    try:
        found: Any = context.new_page().evaluate(_COMPARE, [*encoded, _VISIBLE])
    finally:
        context.close()
    return msgspec.convert(found, Compared)


def fonts(page: Page) -> list[int]:
    """Return how wide some words are in the fonts of a page."""
    found: list[int] = page.evaluate(_MEASURE)
    return found


def known_fonts() -> list[int]:
    """Return the same of the pictures in the documentation."""
    return msgspec.json.decode(FONTS.read_bytes(), type=list[int])
