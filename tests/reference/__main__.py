"""Write the generated pages of the documentation: `python -m tests.reference` (`make reference`)."""

from tests.reference.pages import PAGES

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
