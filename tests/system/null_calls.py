#!/usr/bin/env python3
"""Writes a C program to stdout that calls every function of the public headers with NULL and zeros only, each in a
process of its own, and says which of them crash or hang.

Usage: null_calls.py INCLUDE_DIRECTORY
"""
import glob
import re
import sys

ARRAYS_REQUIRED = {"lks_philox"}  # requires arrays of fixed length

PROGRAM = r"""
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void call(int which) {
    switch (which) {
%(calls)s
    default: break;
    }
}

int main(void) {
    static const char *const names[] = {%(names)s};
    int n_bad = 0, n_names = (int)(sizeof names / sizeof *names);
    for (int i = 0; i < n_names; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            call(i);
            _exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) continue;
        printf("%%s: signal %%d\n", names[i], WTERMSIG(status));
        n_bad++;
    }
    printf("%%d functions\n", n_names);
    return n_bad > 0 ? 1 : 0;
}
"""


def read_headers(directory):
    text = ""
    for path in sorted(glob.glob(directory + "/lockstep/*.h")):
        with open(path, encoding="utf-8") as file:
            text += file.read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def argument(parameter, structs, callbacks):
    words = parameter.replace("const ", "").split()
    if "*" in parameter or "[" in parameter or words[0] in callbacks:
        return "NULL"
    return f"({words[0]}){{0}}" if words[0] in structs else "0"


def main():
    text = read_headers(sys.argv[1])
    structs = set(re.findall(r"typedef struct (\w+) \{", text))
    callbacks = set(re.findall(r"typedef [^;{]*\(\*(\w+)\)\(", text))
    names, calls = [], []
    for name, parameters in re.findall(r"LKS_API\s[^;{(]*?(\w+)\(([^;{]*?)\)[^;{)]*(?:\([^)]*\))?\s*;", text):
        if name in ARRAYS_REQUIRED:
            continue
        given = [p.strip() for p in parameters.split(",") if p.strip() not in ("void", "...")]
        calls.append(f"    case {len(names)}: (void){name}({', '.join(argument(p, structs, callbacks) for p in given)}); break;")
        names.append(f'"{name}"')
    print(PROGRAM % {"calls": "\n".join(calls), "names": ", ".join(names)})


main()
