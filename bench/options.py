"""What the command lines of the scripts have in common: types of arguments, and the file of --json."""
import argparse
import json
import os
import sys


def number(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1")
    return int(text)


def numbers(text):
    return [number(word) for word in text.split(",")]


def steps(text):
    if number(text) <= 20:
        raise argparse.ArgumentTypeError(f"'{text}' is too few: the first 20 steps are left out")
    return int(text)


def choices(known):
    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(known)}")
        return chosen
    return parse


def directory(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no directory {text}")
    return text


def build_directory(text):
    if not os.access(os.path.join(text, "lockstep"), os.X_OK):
        raise argparse.ArgumentTypeError(f"there is no program {os.path.join(text, 'lockstep')}; `make` builds it")
    return text


class Lines:
    """A file of JSON lines; nothing if `path` is None. It is opened before anything is measured. Lines are written at once,
    so that a later run that fails does not lose them. The mode "a" keeps the lines that the file has."""

    def __init__(self, path, mode="w"):
        self.path, self.file = path, None
        try:
            if path is not None:
                self.file = open(path, mode, encoding="utf-8")
        except OSError as error:
            self.fail(error)

    def write(self, entries):
        if self.file is None:
            return
        try:
            self.file.writelines(json.dumps(entry) + "\n" for entry in entries)
            self.file.flush()
        except OSError as error:
            self.fail(error)

    def fail(self, error):
        sys.exit(f"{self.path}: {error.strerror}")
