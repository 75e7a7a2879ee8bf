#!/usr/bin/env python3
"""Does the documentation name things that exist? Every lks_ and LKS_ name, every .field in docs/from-pytorch.md, every
variable of ours, every flag in a table, every link and anchor; with --torch every name of PyTorch's, for a Python that
has it. Prints a line per finding; exit status 1 where there is one. Runs from the root of the tree.

Usage: check_docs.py [--torch] HELP_TEXT...        files that hold what our programs print for --help
"""
import glob
import os
import re
import sys

PAGES = sorted(glob.glob("docs/*.md") + glob.glob("docs/decisions/*.md")) + ["README.md", "CONTRIBUTING.md"]
USER_PAGES = ("docs/launching.md", "docs/exercises.md", "docs/from-pytorch.md")
# Flags of other programs that our documentation names: Slurm's, Docker's, torchrun's.
FOREIGN_FLAGS = {"--exact", "--mpi", "--ntasks-per-node", "--gpus-per-task", "--shm-size", "--redirects", "--tee",
                 "--standalone", "--oversubscribe", "--allow-run-as-root"}
findings = []


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def find(page, text, offset, what):
    findings.append(f"{page}:{text.count(chr(10), 0, offset) + 1}: {what}")


def words(text):
    return set(re.findall(r"\w+", text))


def check_our_names(page, text, headers, sources):
    for match in re.finditer(r"\b(?:lks_|LKS_)\w+", text):
        name = match.group()
        if name.endswith("_") or name in headers:
            continue
        find(page, text, match.start(), f"no header has {name}")
    for match in re.finditer(r"\bLOCKSTEP_[A-Z_]+\b", text):
        if match.group() not in sources:
            find(page, text, match.start(), f"nothing reads {match.group()}")


def check_fields(page, text, headers):
    for code in re.finditer(r"`[^`\n]+`", text):
        for match in re.finditer(r"(?<![\w\])])\.([a-z][a-z0-9_]+)\b", code.group()):
            if match.group(1) not in headers:
                find(page, text, code.start(), f"no header has a field {match.group(1)}")


def check_flags(page, text, helps):
    for code in re.finditer(r"`[^`\n]+`", text):
        for match in re.finditer(r"(?<!\S)--[a-z][a-z_-]*", code.group().strip("`")):
            flag = match.group()
            if "_" in flag or flag in FOREIGN_FLAGS: # with an underscore it is torchrun's
                continue
            if not re.search(rf"{flag}\b(?!-)", helps):
                find(page, text, code.start(), f"no --help has {flag}")


def anchors(text):
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def check_links(page, text):
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = match.group(1).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
        if not os.path.exists(path):
            find(page, text, match.start(), f"{match.group(1)} is not there")
        elif anchor and anchor not in anchors(read(path)):
            find(page, text, match.start(), f"{path} has no heading for #{anchor}")


def check_marks(page, text):
    """The tables that docs/exercises.sh writes have a place each."""
    exercises = re.search(r'^all="(.*)"$', read("docs/exercises.sh"), re.M).group(1).split()
    marks = re.findall(r"^<!-- MEASURED (\w+) -->$", text, re.M)
    if sorted(marks) != sorted(exercises):
        find(page, text, 0, f"marks for {sorted(marks)}, exercises {sorted(exercises)}")


def check_torch(page, text):
    import torch
    import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as default_hooks
    import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook as powerSGD_hook
    import torch.distributed.optim

    roots = {"torch": torch, "dist": torch.distributed, "nn": torch.nn, "default_hooks": default_hooks,
             "powerSGD_hook": powerSGD_hook, "ddp": torch.nn.parallel.DistributedDataParallel}
    for match in re.finditer(r"(?<![\w./\"])(torch|dist|nn|default_hooks|powerSGD_hook|ddp)((?:\.[A-Za-z_]\w*)+)", text):
        thing = roots[match.group(1)]
        for part in match.group(2).strip(".").split("."):
            if part == "module": # an attribute of an instance
                break
            thing = getattr(thing, part, None)
            if thing is None:
                find(page, text, match.start(), f"torch {torch.__version__} has no {match.group()}")
                break


def main(arguments):
    if arguments[:1] == ["--torch"]:
        check_torch("docs/from-pytorch.md", read("docs/from-pytorch.md"))
    else:
        headers = set().union(*(words(read(path)) for path in glob.glob("include/lockstep/*.h")))
        sources = set().union(*(words(read(path)) for pattern in ("src/**/*.[ch]", "examples/**/*", "tests/**/*.[ch]", "tests/**/*.sh")
                          for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)))
        helps = "".join(read(path) for path in arguments)
        for page in PAGES:
            text = read(page)
            if page != "docs/style.md": # it explains how names are made
                check_our_names(page, text, headers, sources)
            check_links(page, text)
            if page in USER_PAGES:
                check_flags(page, text, helps)
        check_fields("docs/from-pytorch.md", read("docs/from-pytorch.md"), headers)
        check_marks("docs/exercises.md", read("docs/exercises.md"))
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
