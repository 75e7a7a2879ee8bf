/* lks_group_report: what the ranks are doing. Every rank keeps a few words in its seat up to date. Others read them,
 * whatever state the group is in. Ranks on other hosts are asked. */
#include "comm/comm_internal.h"
#include "comm/world.h"

#include <string.h>

static void set(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }
static uint64_t get(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

void lksi_activity_publish_name(lks_group *group, lksi_context context) {
    const char *name = lksi_progress_in(group, context)->name;
    uint64_t words[2] = {0};
    memcpy(words, name, strnlen(name, sizeof words));
    set(&group->own_seat->activities[context].name[0], words[0]);
    set(&group->own_seat->activities[context].name[1], words[1]);
    group->published_names[context] = name;
}

void lksi_activity_end(lks_group *group, lksi_context context) {
    lksi_activity *activity = &group->own_seat->activities[context];
    set(&activity->completed_name[0], get(&activity->name[0]));
    set(&activity->completed_name[1], get(&activity->name[1]));
    set(&activity->completed, get(&activity->sequence));
}

/* Point-to-point messages are shown only while the rank sleeps in one. */
void lksi_activity_await(lks_group *group, lksi_context context, int rank) {
    lksi_activity *activity = &group->own_seat->activities[context];
    int32_t awaited = rank == LKSI_AWAKE ? 0 : rank < 0 ? LKSI_AWAITS_ANY : rank + 1;
    if (awaited != 0) {
        set(&activity->done_nbytes, lksi_progress_in(group, context)->done_nbytes);
        if (context == LKSI_CONTEXT_USER) lksi_activity_begin(group, context);
    }
    atomic_store_explicit(&activity->is_worker, lksi_work_is_worker(), memory_order_relaxed);
    atomic_store_explicit(&activity->awaited, awaited, memory_order_relaxed);
    if (group->parent != NULL)
        lksi_activity_await(group->parent, context, rank < 0 ? rank : lksi_rank_in(group->parent, group, rank));
}

/* --- reading --- */

static void name_of(const _Atomic uint64_t words[2], char name[17]) {
    uint64_t copy[2] = {get(&words[0]), get(&words[1])};
    memcpy(name, copy, sizeof copy);
    name[16] = '\0';
}

static void add_awaited(char *text, size_t text_nbytes, const lks_group *group, const lksi_activity *activity) {
    int32_t awaited = atomic_load_explicit(&activity->awaited, memory_order_relaxed);
    if (awaited == 0) return;
    lksi_append(text, text_nbytes, ", %llu bytes done, waits for ", (unsigned long long)get(&activity->done_nbytes));
    if (awaited == LKSI_AWAITS_ANY)
        lksi_append(text, text_nbytes, "any rank");
    else
        lksi_append(text, text_nbytes, "rank %d", lksi_world_rank(group, (int)awaited - 1));
}

static void add_activities(char *text, size_t text_nbytes, const lks_group *group, const lksi_seat *seat) {
    const lksi_activity *collective = &seat->activities[LKSI_CONTEXT_COLLECTIVE];
    const lksi_activity *user = &seat->activities[LKSI_CONTEXT_USER];
    uint64_t sequence = get(&collective->sequence), completed = get(&collective->completed);
    char name[17];
    name_of(collective->completed_name, name);
    if (completed > 0)
        lksi_append(text, text_nbytes, "completed call %llu (%s)", (unsigned long long)completed, name);
    else
        lksi_append(text, text_nbytes, "completed no call");
    if (sequence > completed) {
        name_of(collective->name, name);
        lksi_append(text, text_nbytes, "; in call %llu (%s)", (unsigned long long)sequence, name);
        add_awaited(text, text_nbytes, group, collective);
    }
    if (atomic_load_explicit(&user->awaited, memory_order_relaxed) == 0) return;
    name_of(user->name, name);
    lksi_append(text, text_nbytes, "; in message %llu (%s)", (unsigned long long)get(&user->sequence), name);
    add_awaited(text, text_nbytes, group, user);
}

static bool sleeps(const lksi_activity *activity) {
    return atomic_load_explicit(&activity->awaited, memory_order_relaxed) != 0 &&
           !atomic_load_explicit(&activity->is_worker, memory_order_relaxed);
}

/* The seat of the rank with world rank `who`. NULL: it has none, or it has left, or the group is dead. */
static const lksi_seat *seat_of(const lks_group *group, int who) {
    int rank = lksi_rank_of_world(group, who), seat = rank < group->size ? group->seat_of[rank] : -1;
    if (seat < 0 || lksi_control_is_aborted(group->control)) return NULL;
    const lksi_seat *found = &group->control->seats[seat];
    return atomic_load(&found->presence.value) == LKSI_LEFT ? NULL : found;
}

/* Whether world rank `who` sleeps in a collective of `group` or of one of its parts. */
static bool sleeps_in_call(const lks_group *groups, const lks_group *group, int who) {
    for (; groups != NULL; groups = groups->next_in_world) {
        const lksi_seat *seat = groups == group || groups->parent == group ? seat_of(groups, who) : NULL;
        if (seat != NULL && sleeps(&seat->activities[LKSI_CONTEXT_COLLECTIVE])) return true;
    }
    return false;
}

/* Names `other` in a text about `group`. */
static void append_name(const lks_group *other, const lks_group *group, char *text, size_t text_nbytes) {
    if (other->owner != NULL)
        lksi_append(text, text_nbytes, "the %s's own group", other->owner);
    else if (other->id == group->origin && group->owner != NULL)
        lksi_append(text, text_nbytes, "the group that the %s was given", group->owner);
    else if (other->id == group->origin)
        lksi_append(text, text_nbytes, "the group that this one was split from");
    else if (other->origin == group->id)
        lksi_append(text, text_nbytes, "a group that was split from this one");
    else
        lksi_append(text, text_nbytes, "another group");
}

/* Describes what world rank `who` does in `other`, in a text about `group`. */
static void describe_call(const lks_group *groups, const lks_group *other, const lks_group *group, int who, char *text,
                          size_t text_nbytes) {
    const lksi_seat *seat = seat_of(other, who);
    if (seat == NULL) return;
    bool is_in_call = sleeps_in_call(groups, other, who);
    const lksi_activity *shown = &seat->activities[is_in_call ? LKSI_CONTEXT_COLLECTIVE : LKSI_CONTEXT_USER];
    if (!is_in_call && !sleeps(shown)) return;
    char name[17];
    name_of(shown->name, name);
    lksi_append(text, text_nbytes, "%s %llu (%s) of ", is_in_call ? "call" : "message",
                (unsigned long long)get(&shown->sequence), name);
    append_name(other, group, text, text_nbytes);
}

void lksi_elsewhere_describe(const lks_group *group, int rank, char *text, size_t text_nbytes) {
    lksi_world *world = group->world;
    text[0] = '\0';
    pthread_mutex_lock(&world->mutex);
    for (const lks_group *other = world->groups; other != NULL && text[0] == '\0'; other = other->next_in_world)
        if (other != group && other != group->parent && other->parent == NULL)
            describe_call(world->groups, other, group, lksi_world_rank(group, rank), text, text_nbytes);
    pthread_mutex_unlock(&world->mutex);
}

/* Asks the ranks of other hosts. NULL: they cannot be asked, or the group is dead. */
static lksi_doing *ask_remote(const lks_group *group) {
    if (!lksi_can_ask(group) || lksi_control_is_aborted(group->control)) return NULL;
    lksi_doing *doing = lksi_alloc_array((size_t)group->size, sizeof *doing);
    if (doing != NULL) group->remote->roll_call(group, LKSI_ROLL_CALL_MS, doing);
    return doing;
}

static void add_remote(char *text, size_t text_nbytes, const lks_group *group, const lksi_doing *doing) {
    lksi_append(text, text_nbytes, "reached over %s", group->remote->name);
    if (doing == NULL) return;
    if (!doing->is_known)
        lksi_append(text, text_nbytes, "; does not answer");
    else if (doing->sequence == 0)
        lksi_append(text, text_nbytes, "; has reached no call");
    else
        lksi_append(text, text_nbytes, "; has reached call %llu", (unsigned long long)doing->sequence);
    if (doing->is_known && doing->awaited >= 0 && doing->awaited < group->size)
        lksi_append(text, text_nbytes, ", waits for rank %d", lksi_world_rank(group, doing->awaited));
    else if (doing->is_known && doing->elsewhere[0] != '\0')
        lksi_append(text, text_nbytes, ", is in %s", doing->elsewhere);
}

void lks_group_report(const lks_group *group, char *text, size_t text_nbytes) {
    if (text_nbytes == 0 || lksi_check_given("group_report", "text", text) != LKS_OK) return;
    text[0] = '\0';
    if (group == NULL || lksi_is_parents(group)) {
        lksi_append(text, text_nbytes, "%s\n",
                    group == NULL ? "no group" : "a forked child is not a member of its parent's groups");
        return;
    }
    lksi_doing *doing = ask_remote(group);
    for (int rank = 0; rank < group->size; rank++) {
        lksi_append(text, text_nbytes, "%s: ", lksi_rank_describe(group, rank).text);
        int seat = group->seat_of[rank];
        if (seat < 0)
            add_remote(text, text_nbytes, group, doing != NULL ? &doing[rank] : NULL);
        else if (atomic_load(&group->control->seats[seat].presence.value) == LKSI_LEFT)
            lksi_append(text, text_nbytes, "has left the group");
        else
            add_activities(text, text_nbytes, group, &group->control->seats[seat]);
        lksi_append(text, text_nbytes, "\n");
    }
    lksi_free(doing);
}

static void add_messages(const lks_group *group, lks_counters *counters) {
    if (group == NULL) return;
    counters->n_messages += get(&group->counters.n_messages);
    counters->n_message_nbytes += get(&group->counters.n_message_nbytes);
}

/* Two-level algorithms send their messages in the group's parts, so these are counted, too. */
void lks_group_counters(const lks_group *group, lks_counters *counters) {
    if (counters == NULL) return;
    *counters = (lks_counters){0};
    if (group == NULL) return;
    const lksi_counters *own = &group->counters;
    *counters = (lks_counters){.n_collectives = get(&own->n_calls),
                               .n_point_to_point = own->n_point_to_point,
                               .n_messages = own->n_user_messages,
                               .n_message_nbytes = own->n_user_message_nbytes};
    add_messages(group, counters);
    add_messages(group->inner, counters);
    add_messages(group->outer, counters);
}
