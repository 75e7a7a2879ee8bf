/* lockstep data: downloads and checks data sets by name. */
#include "cli/cli.h"
#include "data/download/download.h"

#include <string.h>

static const char help_text[] =
    "usage: lockstep data get NAME... [--dir DIR] [--force] [--quiet]\n"
    "       lockstep data verify NAME... [--dir DIR]\n"
    "       lockstep data list [--dir DIR]\n"
    "\n"
    "get downloads data sets and checks them. It only checks sets that are present, without a network. verify only\n"
    "checks. list shows the known sets and their directories.\n"
    "\n"
    "  --dir DIR         parent of the sets' directories, DIR/mnist and so on (default, where the trainers look, too:\n"
    "                    of $LOCKSTEP_DATA and $XDG_CACHE_HOME/lockstep/data, or ~/.cache/lockstep/data without that\n"
    "                    variable, the first that has a directory of the set, else the first whose variable is set)\n"
    "  --force           replace files that differ from the expected ones\n"
    "  --quiet           print only errors\n"
    "\n"
    "LOCKSTEP_DATA_MIRROR=URL: download only from URL/NAME/FILE. A private mirror is a web server for such a tree:\n"
    "the files as 'get' leaves them, and for cifar-10 the file cifar-10/cifar-10-binary.tar.gz.\n"
    "An interrupted download continues where it stopped. Concurrent downloads to one directory are done once.\n"
    "Exit status: 0; 1 if a set could not be downloaded or is wrong; 2 for a wrong option or name.\n";

enum { MAX_NAMES = 16 };

typedef struct request {
    const char *directory; /* --dir, or NULL */
    bool is_forced, is_quiet;
    const lksi_set *sets[MAX_NAMES];
    int n_sets;
} request;

static int add_set(request *asked, const char *name) {
    const lksi_set *set = lksi_set_find(name);
    if (set == NULL) return lksi_refuse("data", "%s", lks_error_text());
    if (asked->n_sets == MAX_NAMES) return lksi_refuse("data", "more than %d names", MAX_NAMES);
    asked->sets[asked->n_sets++] = set;
    return 0;
}

static const lksi_option options[] = {
    {.name = "--force", .kind = LKSI_OPTION_FLAG, .offset = offsetof(request, is_forced)},
    {.name = "--quiet", .kind = LKSI_OPTION_FLAG, .offset = offsetof(request, is_quiet)},
    {.name = "--dir", .kind = LKSI_OPTION_TEXT, .offset = offsetof(request, directory), .expected = "a directory"},
    {.name = NULL}};

static int parse(int argc, char **argv, request *asked) {
    int refused = 0;
    for (int i = 0; i < argc && refused == 0; i++)
        refused = argv[i][0] == '-' ? lksi_option_take("data", options, argv, &i, asked) : add_set(asked, argv[i]);
    return refused;
}

static lks_status find_directory(const request *asked, const lksi_set *set, char path[LKSI_PATH_NBYTES]) {
    if (asked->directory == NULL) return lks_data_directory(set->name, path, LKSI_PATH_NBYTES);
    return lksi_path(path, "%s/%s", asked->directory, set->directory);
}

typedef lks_status (*action)(const request *asked, const lksi_set *set, const char *directory);

static lks_status get(const request *asked, const lksi_set *set, const char *directory) {
    lksi_download_progress progress = {.is_shown = !asked->is_quiet, .lock = -1};
    lksi_get_options how = {.verifies = true, .replaces = asked->is_forced};
    bool was_there;
    lks_status status = lksi_get(set, directory, &how, &progress, &was_there);
    lksi_download_progress_end(&progress);
    if (status != LKS_OK) return status;
    if (!asked->is_quiet) printf("%s: %s%s\n", set->name, directory, was_there ? " (was there already)" : "");
    return LKS_OK;
}

static lks_status verify(const request *asked, const lksi_set *set, const char *directory) {
    lksi_download_progress progress = {.is_shown = !asked->is_quiet, .lock = -1};
    lks_status status = lksi_set_check(set, directory, true, &progress);
    lksi_download_progress_end(&progress);
    if (status != LKS_OK) return status;
    if (!asked->is_quiet) printf("%s: %s: all files are right\n", set->name, directory);
    return LKS_OK;
}

static lks_status list(const request *asked, const lksi_set *set, const char *directory) {
    (void)asked;
    printf("%-14s %6.1f MB  %s\n%-14s %9s  %s%s\n", set->name, (double)lksi_set_nbytes(set) / 1e6, set->title, "", "",
           directory, lksi_file_exists(directory) ? "" : " (not there)");
    return LKS_OK;
}

/* Processes all sets, also after an error, so that one run reports on each. */
static int for_each(const request *asked, action act) {
    char directory[LKSI_PATH_NBYTES];
    int exit_status = 0;
    for (int i = 0; i < asked->n_sets; i++) {
        const bool has_place = find_directory(asked, asked->sets[i], directory) == LKS_OK;
        if (has_place && act(asked, asked->sets[i], directory) == LKS_OK) continue;
        (void)lksi_refuse("data", "%s", lks_error_text());
        exit_status = 1;
        if (!has_place) break; /* the other sets have no directory either */
    }
    return exit_status;
}

static int run(int argc, char **argv) {
    request asked = {.n_sets = 0};
    if (argc < 2) return lksi_refuse("data", "no action is given: get, verify or list; see lockstep help data");
    bool is_get = strcmp(argv[1], "get") == 0, is_list = strcmp(argv[1], "list") == 0;
    if (!is_get && !is_list && strcmp(argv[1], "verify") != 0)
        return lksi_refuse("data", "'%s' is not one of get, verify, list; see lockstep help data", argv[1]);
    int refused = parse(argc - 2, argv + 2, &asked);
    if (refused != 0) return refused;
    if (asked.is_forced && !is_get) return lksi_refuse("data", "--force is for get only");
    if (is_list && asked.n_sets > 0) return lksi_refuse("data", "list takes no names");
    if (!is_list && asked.n_sets == 0) return lksi_refuse("data", "no data set is given; see lockstep data list");
    for (int i = 0; is_list && lksi_set_at(i) != NULL; i++) asked.sets[asked.n_sets++] = lksi_set_at(i);
    return for_each(&asked, is_get ? get : is_list ? list : verify);
}

const lksi_command lksi_command_data = {
    .name = "data", .summary = "download data sets, and check them", .help = help_text, .run = run};
