"""Check that no file has more flagged phrases than its budget allows.

The phrases are ones that native speakers rarely write. The budget is in `prose_budget.json` and can
only fall: a file that is not listed must have none. Run with `--write` to record lower counts, and
with `--show FILE` to print the phrases of one file.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUDGET = Path(__file__).with_name("prose_budget.json")
AREAS = {"taskbull": "py", "lua": "lua", "docs": "md", "tests": "py", "examples": "py", ".": "md"}

FLAGGED = re.compile(
    r"\b(?:told|tells?|telling)\b"  # log, report, emit, notify, return
    r"|\bbec[ao]mes? of\b|\b(?:came|comes?) of\b"  # the outcome, the result
    r"|\b(?:is|are|was|were) (?:not )?to (?!be found)[a-z]+"  # must, should, will
    r"|\b(?:of|in|to|by|from|for|at|on|with|under|after|into) (?:which|whom|what)\b"
    r"|\b(?:some|no|any|every)body\b|\bwho(?:m)?ever\b|\bthose who\b"  # name the actor
    r"|\b(?:anew|afresh|for ever|any more|all the same|meanwhile|at the most|again and again)\b"
    r"|\b(?:stands?|stood)\b|\bgo(?:es)? on\b|\bgone on\b"  # is, continues, has moved on
    r"|\bof (?:its|their|our|your) own\b|\bof (?:ours|theirs)\b"
    r"|\b(?:heed|fares?|mend|doom|bur(?:y|ied)|torment|reprieve)\w*"
    r"|\b(?:None|0|-1): |\bso (?:many|much)\b(?! (?:that|as))|, too\b"
    r"|\balso (?:if|when|while|where)\b"
    r"|(?m:^(?:# )?(?:What|How|Where|Whether|Which|That|Those|Whose) )",
    re.IGNORECASE,
)


def prose(path: Path) -> str:
    """Return the docstrings and comments of a source file, or the text of a page without code."""
    text = path.read_text("utf-8")
    if path.suffix == ".lua":
        return "\n".join(re.findall(r"--\s?(.*)", text))
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    comments = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [token.string for token in comments if token.type == tokenize.COMMENT]
    return "\n".join([*_docstrings(ast.parse(text)), *found])


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield every string that is a statement: docstrings, those of attributes included."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield text


def count() -> dict[str, int]:
    """Return the number of flagged phrases of each file that has any."""
    files = [
        path
        for area, suffix in AREAS.items()
        for path in (ROOT / area).glob(f"*.{suffix}" if area == "." else f"**/*.{suffix}")
        if "node_modules" not in path.parts
    ]
    counts = {path: len(FLAGGED.findall(prose(path))) for path in sorted(files)}
    return {str(path.relative_to(ROOT)): number for path, number in counts.items() if number}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--show"]:
        for file in arguments[1:]:
            for match in FLAGGED.finditer(text := prose(Path(file))):
                print(f"{file}: …{text[max(match.start() - 30, 0) : match.end() + 30]!r}")
        return 0
    found = count()
    budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else found
    worse = [
        f"{file}: {number} flagged phrases, {budget.get(file, 0)} allowed"
        for file, number in found.items()
        if number > budget.get(file, 0)
    ]
    if worse:
        print(*worse, "See them with: python -m tests.prose --show FILE", sep="\n")
        return 1
    if arguments == ["--write"]:
        BUDGET.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{sum(found.values())} flagged phrases, {sum(budget.values())} allowed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
