/* The command `lockstep`: dispatches to subcommands. */
#include "cli/cli.h"

#include <lockstep/base.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const lksi_command *const commands[] = {&lksi_command_run, &lksi_command_bench, &lksi_command_data,
                                               &lksi_command_info};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const lksi_command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static void print_help(FILE *to) {
    fprintf(to, "usage: lockstep COMMAND [OPTIONS]\n\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-18s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "  %-18s %s\n", "help COMMAND", "what a command does, and its options");
    fprintf(to, "  %-18s %s\n", "--version", "the version");
}

static int refuse(const char *name) {
    lksi_say("lockstep: unknown command '%s'; see lockstep --help", name);
    return LKSI_EXIT_USAGE;
}

static int help(const char *name) {
    const bool is_general = name == NULL || strcmp(name, "help") == 0 || lksi_asks_for_help(name);
    const lksi_command *command = is_general ? NULL : find_command(name);
    if (!is_general && command == NULL) return refuse(name);
    if (command != NULL)
        fputs(command->help, stdout);
    else
        print_help(stdout);
    return 0;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return LKSI_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        printf("lockstep %s\n", lks_version());
        return 0;
    }
    if (strcmp(name, "help") == 0 || lksi_asks_for_help(name)) return help(argv[2]);
    const lksi_command *command = find_command(name);
    if (command == NULL) return refuse(name);
    if (argc > 2 && lksi_asks_for_help(argv[2])) return help(name); /* in place of an action, too */
    int exit_status = command->run(argc - 1, argv + 1);
    return exit_status == LKSI_SHOW_HELP ? help(name) : exit_status;
}

int main(int argc, char **argv) {
    lksi_fill_standard_descriptors();
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes becomes an error of the write */
    lksi_output_begin();
    return lksi_output_end(run(argc, argv));
}
