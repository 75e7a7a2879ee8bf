/* Options: one table for each subcommand, in which each says where its value goes. */
#include "cli/cli.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* The option that `argument` names; *value is what follows a '=' in it, or the number in -n4, else NULL. */
static const lksi_option *find(const lksi_option *options, const char *argument, const char **value) {
    for (const lksi_option *o = options; o->name != NULL; o++) {
        size_t length = strlen(o->name);
        if (strncmp(argument, o->name, length) != 0) continue;
        bool is_number = length == 2 && isdigit((unsigned char)argument[length]);
        *value = argument[length] == '=' ? argument + length + 1 : is_number ? argument + length : NULL;
        if (argument[length] == '\0' || *value != NULL) return o;
    }
    return NULL;
}

static int set_number(const char *command, const lksi_option *o, const char *value, int *number) {
    int64_t parsed;
    if (!lksi_parse_i64(value, o->min, o->max, &parsed))
        return lksi_refuse(command, "%s '%s': a number from %d to %d was expected", o->name, value, o->min, o->max);
    *number = (int)parsed;
    return 0;
}

static int set_seconds(const char *command, const lksi_option *o, const char *value, int64_t *duration_ms) {
    double seconds;
    if (!lksi_parse_f64(value, 0.001, 1e9, &seconds))
        return lksi_refuse(command, "%s '%s': seconds were expected, at least 0.001", o->name, value);
    *duration_ms = (int64_t)ceil(seconds * 1000);
    return 0;
}

static int set_text(const char *command, const lksi_option *o, const char *value, const char **text) {
    if (*value == '\0') return lksi_refuse(command, "%s '': %s was expected", o->name, o->expected);
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
        break;
    }
    *(bool *)place = true;
    return 0;
}

int lksi_option_take(const char *command, const lksi_option *options, char **argv, int *i, void *request) {
    const char *value;
    const lksi_option *found = find(options, argv[*i], &value);
    if (found == NULL) return lksi_refuse(command, "unknown option '%s'; see lockstep help %s", argv[*i], command);
    bool is_flag = found->kind == LKSI_OPTION_FLAG;
    if (is_flag && value != NULL) return lksi_refuse(command, "%s takes no value", found->name);
    if (!is_flag && value == NULL) {
        if (argv[*i + 1] == NULL) return lksi_refuse(command, "%s needs a value", found->name);
        value = argv[++*i];
    }
    return set(command, found, value, request);
}
