/* Option parser: each subcommand has one table that says where values are stored. */
#include "cli/cli.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

enum { NAME_NBYTES = 32 };

/* Copies the part before '=', truncated to fit. Underscores, which torchrun's users type, become hyphens. */
static void name_of(const char *argument, char name[NAME_NBYTES]) {
    snprintf(name, NAME_NBYTES, "%.*s", (int)strcspn(argument, "="), argument);
    for (char *c = name; *c != '\0'; c++)
        if (*c == '_') *c = '-';
}

/* Finds the option that `argument` names. *value becomes the text after '=', or the number in -n4, otherwise NULL. */
static const lksi_option *find(const lksi_option *options, const char *argument, const char **value) {
    char name[NAME_NBYTES];
    name_of(argument, name);
    for (const lksi_option *o = options; o->name != NULL; o++) {
        size_t length = strlen(o->name);
        if (strncmp(name, o->name, length) != 0) continue;
        bool is_number = length == 2 && isdigit((unsigned char)argument[length]);
        *value = argument[length] == '=' ? argument + length + 1 : is_number ? argument + length : NULL;
        if (argument[length] == '\0' || *value != NULL) return o;
    }
    return NULL;
}

/* Edit distance: insertions, deletions and substitutions of letters (Levenshtein, 1966). */
static size_t distance(const char *a, const char *b) {
    size_t row[NAME_NBYTES], n = strlen(b);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t changed = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = lksi_least(changed, 1 + lksi_least(diagonal, row[j]));
        }
    }
    return row[n];
}

static int refuse_unknown(const char *command, const lksi_option *options, const char *argument) {
    char name[NAME_NBYTES];
    const char *nearest = NULL;
    name_of(argument, name);
    size_t least = strlen(name) < sizeof "--four" - 1 ? 2 : 3; /* a larger distance is not a typing error */
    for (const lksi_option *o = options; o->name != NULL && lksi_begins_with(name, "--"); o++) {
        size_t d = distance(name, o->name);
        if (d >= least || o->kind == LKSI_OPTION_FOREIGN) continue;
        least = d;
        nearest = o->name;
    }
    if (nearest != NULL) return lksi_refuse(command, "unknown option '%s'; did you mean %s?", argument, nearest);
    return lksi_refuse(command, "unknown option '%s'; see lockstep help %s", argument, command);
}

static int set_number(const char *command, const lksi_option *o, const char *value, int *number) {
    int64_t parsed;
    if (!lksi_parse_i64(value, o->min, o->max, &parsed))
        return lksi_refuse(command, "%s '%s' is not a number from %d to %d", o->name, value, o->min, o->max);
    *number = (int)parsed;
    return 0;
}

static int set_seconds(const char *command, const lksi_option *o, const char *value, int64_t *duration_ms) {
    double seconds, least = o->min > 0 ? o->min : 0.001;
    if (!lksi_parse_f64(value, least, 1e9, &seconds))
        return lksi_refuse(command, "%s '%s' is not a number of seconds of at least %g", o->name, value, least);
    *duration_ms = (int64_t)ceil(seconds * 1000);
    return 0;
}

static int set_text(const char *command, const lksi_option *o, const char *value, const char **text) {
    if (*value == '\0') return lksi_refuse(command, "%s '' is empty; it takes %s", o->name, o->expected);
    *text = value;
    return 0;
}

static int set(const char *command, const lksi_option *o, const char *value, void *request) {
    void *place = (char *)request + o->offset;
    switch (o->kind) {
    case LKSI_OPTION_NUMBER:
        return set_number(command, o, value, place);
    case LKSI_OPTION_SECONDS:
        return set_seconds(command, o, value, place);
    case LKSI_OPTION_TEXT:
        return set_text(command, o, value, place);
    case LKSI_OPTION_OTHER:
        return o->set(request, value);
    case LKSI_OPTION_FLAG:
    case LKSI_OPTION_FOREIGN: /* has been refused */
        break;
    }
    *(bool *)place = true;
    return 0;
}

bool lksi_asks_for_help(const char *argument) { return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0; }

int lksi_option_take(const char *command, const lksi_option *options, char **argv, int *i, void *request) {
    const char *value;
    if (lksi_asks_for_help(argv[*i])) return LKSI_SHOW_HELP;
    const lksi_option *found = find(options, argv[*i], &value);
    if (found == NULL) return refuse_unknown(command, options, argv[*i]);
    if (found->kind == LKSI_OPTION_FOREIGN)
        return lksi_refuse(command, "%s is torchrun's: %s", found->name, found->expected);
    bool is_flag = found->kind == LKSI_OPTION_FLAG;
    if (is_flag && value != NULL) return lksi_refuse(command, "%s takes no value", found->name);
    if (!is_flag && value == NULL) {
        if (argv[*i + 1] == NULL) return lksi_refuse(command, "%s needs a value", found->name);
        value = argv[++*i];
    }
    return set(command, found, value, request);
}
