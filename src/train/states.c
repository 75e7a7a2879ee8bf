/* States: what a model carries from one step to the next. The trainer keeps them in memory of its device, where
 * programs read them in place. The only cost is a copy of a few rows after each run (on a GPU also before a piece whose
 * rows are not aligned). */
#include "train/trainer_internal.h"

#include <string.h>

/* Also works for a trainer without a store. */
static const lks_device *device_of(const lks_trainer *trainer) {
    return lksi_graph_device(lks_node_graph(trainer->loss));
}

size_t lksi_states_row_nbytes(const lks_trainer *trainer, int i) {
    return lksi_row_nbytes(trainer->options.states[i].input);
}

static lks_status check_state(const lks_state *state, int i) {
    const lks_node *in = state->input, *out = state->output;
    if (in == NULL || out == NULL) return lksi_error(LKS_ERR_ARGUMENT, "state %d lacks its input or its output", i);
    lks_type float_type = lksi_graph_device(lks_node_graph(state->input))->float_type;
    if (lks_node_type(in) != float_type || lks_node_type(out) != float_type)
        return lksi_error(LKS_ERR_ARGUMENT, "state %d: its input is of %s and its output of %s, both have to be of %s",
                          i, lks_type_name(lks_node_type(in)), lks_type_name(lks_node_type(out)),
                          lks_type_name(float_type));
    bool fits = lks_node_n_dims(in) >= 1 && lks_node_dim(in, 0) == LKS_BATCH;
    fits = fits && lks_node_n_dims(in) == lks_node_n_dims(out);
    for (int d = 0; fits && d < lks_node_n_dims(in); d++) fits = lks_node_dim(in, d) == lks_node_dim(out, d);
    return fits ? LKS_OK
                : lksi_error(LKS_ERR_SHAPE, "state %d: its input and its output must have the same shape (N,...)", i);
}

/* Skips states of a poisoned graph, whose shapes mean nothing. Creating the store reports the graph's error. */
static lks_status check_states(const lks_state *states, int n_states) {
    if (n_states < 0 || (n_states > 0 && states == NULL))
        return lksi_error(LKS_ERR_ARGUMENT, "a trainer was given %d states%s", n_states,
                          n_states > 0 ? ", but no array of them" : "");
    for (int i = 0; i < n_states; i++) {
        bool is_poison = states[i].input != NULL && states[i].output != NULL &&
                         (lksi_node_is_poison(states[i].input) || lksi_node_is_poison(states[i].output));
        if (!is_poison) LKS_TRY(check_state(&states[i], i));
    }
    return LKS_OK;
}

lks_status lksi_trainer_prepare_states(lks_trainer *trainer) {
    const lks_state *given = trainer->options.states;
    size_t n_states = (size_t)trainer->options.n_states;
    trainer->options.states = NULL;
    LKS_TRY(check_states(given, trainer->options.n_states));
    lks_state *copy = lksi_alloc_array(n_states, sizeof *copy);
    trainer->options.states = copy;
    trainer->states.values = lksi_alloc_array(n_states, sizeof *trainer->states.values);
    trainer->outputs = lksi_alloc_array(n_states + 1, sizeof *trainer->outputs);
    if (copy == NULL || trainer->states.values == NULL || trainer->outputs == NULL) return LKS_ERR_MEMORY;
    if (n_states > 0) memcpy(copy, given, n_states * sizeof *copy);
    return LKS_OK;
}

/* Recordings contain the addresses of the trainer's own states, so they are dropped before these move. The step in
 * progress is finished first, because freeing GPU memory would wait for it without a deadline. */
static lks_status make_ready_to_move(lks_trainer *trainer, const lksi_states *states) {
    if (states != &trainer->states || states->capacity == 0 || trainer->options.n_states == 0) return LKS_OK;
    LKS_TRY(lksi_trainer_catch_up(trainer));
    lksi_flat_forget(trainer);
    return LKS_OK;
}

static lks_status move_one(const lks_trainer *trainer, lksi_states *states, int i, int64_t first_row,
                           int64_t capacity) {
    const lks_device *device = device_of(trainer);
    size_t row_nbytes = lksi_states_row_nbytes(trainer, i);
    void *moved;
    LKS_TRY(lksi_device_alloc(device, (size_t)capacity * row_nbytes, &moved));
    lks_status status = LKS_OK;
    if (states->n_rows > 0)
        status = lksi_device_copy(device, moved, states->values[i] + (size_t)first_row * row_nbytes,
                                  (size_t)states->n_rows * row_nbytes);
    lksi_device_free(device, status == LKS_OK ? states->values[i] : moved);
    if (status == LKS_OK) states->values[i] = moved;
    return status;
}

/* Moves the rows in use, which begin at `first_row`, to new memory with `capacity` rows. */
static lks_status move(lks_trainer *trainer, lksi_states *states, int64_t first_row, int64_t capacity) {
    LKS_TRY(make_ready_to_move(trainer, states));
    for (int i = 0; i < trainer->options.n_states; i++) LKS_TRY(move_one(trainer, states, i, first_row, capacity));
    states->capacity = capacity;
    return LKS_OK;
}

static int64_t capacity_for(const lks_trainer *trainer, int64_t n_rows, int64_t of_all) {
    bool is_recorded = lksi_device_has_memory(device_of(trainer));
    return is_recorded && of_all > n_rows ? of_all : n_rows;
}

lks_status lksi_states_reserve(lks_trainer *trainer, lksi_states *states, int64_t n_rows, int64_t of_all) {
    int64_t capacity = capacity_for(trainer, n_rows, of_all);
    if (capacity > states->capacity) LKS_TRY(move(trainer, states, 0, capacity));
    if (n_rows > states->n_rows) states->n_rows = n_rows;
    return LKS_OK;
}

lks_status lksi_states_clear(const lks_trainer *trainer, lksi_states *states) {
    for (int i = 0; i < trainer->options.n_states && states->n_rows > 0; i++)
        LKS_TRY(lksi_device_zero(device_of(trainer), states->values[i],
                                 (size_t)states->n_rows * lksi_states_row_nbytes(trainer, i)));
    states->n_rows = 0;
    return LKS_OK;
}

/* Row i continues row i of the previous batch, so every batch must be divided like the one before. */
lks_status lksi_states_check(const lks_trainer *trainer, const lks_batch *batch) {
    const lksi_seats *seats = &trainer->seats;
    if (trainer->options.n_states == 0 || seats->of_all == 0) return LKS_OK;
    int64_t begin = batch->global_offset, end = begin + batch->count;
    int64_t seats_end = seats->begin + trainer->states.n_rows;
    bool is_within = begin >= seats->begin && end <= seats_end;
    bool is_equal = batch->count == trainer->states.n_rows && (batch->count == 0 || begin == seats->begin);
    if (batch->global_count == seats->of_all && (seats->is_whole ? is_within : is_equal)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "step %lld: rank %d brings samples %lld to %lld of %lld, the model's states are of samples %lld "
                      "to %lld of %lld; lks_trainer_reset_states makes them 0, for a batch that is cut otherwise",
                      (long long)trainer->n_steps + 1, lks_group_rank(trainer->options.group), (long long)begin,
                      (long long)end, (long long)batch->global_count, (long long)seats->begin, (long long)seats_end,
                      (long long)seats->of_all);
}

bool lksi_states_must_move(const lks_trainer *trainer, const lks_batch *batch) {
    int64_t capacity = capacity_for(trainer, batch->count, batch->global_count);
    return trainer->options.n_states > 0 && (trainer->seats.is_whole || capacity > trainer->states.capacity);
}

/* A rank without samples also gets one row of zeros, because it may have to compute a stand-in. */
lks_status lksi_states_seat(lks_trainer *trainer, const lks_batch *batch) {
    lksi_states *states = &trainer->states;
    int64_t n_rows = batch->count > 0 ? batch->count : 1;
    if (trainer->options.n_states == 0) return LKS_OK;
    if (trainer->seats.is_whole) {
        states->n_rows = batch->count;
        LKS_TRY(move(trainer, states, batch->global_offset, capacity_for(trainer, n_rows, batch->global_count)));
    }
    LKS_TRY(lksi_states_reserve(trainer, states, n_rows, batch->global_count));
    states->n_rows = batch->count;
    trainer->seats = (lksi_seats){.of_all = batch->global_count, .begin = batch->global_offset};
    return LKS_OK;
}

void lksi_states_free(const lks_trainer *trainer, lksi_states *states) {
    for (int i = 0; i < trainer->options.n_states && states->values != NULL; i++)
        lksi_device_free(device_of(trainer), states->values[i]);
    lksi_free(states->values);
}

lks_status lksi_states_bind(const lks_trainer *trainer, const lksi_states *states, int64_t first_row,
                            lks_program *program) {
    for (int i = 0; i < trainer->options.n_states; i++)
        LKS_TRY(
            lksi_program_set_input_there(program, trainer->options.states[i].input,
                                         states->values[i] + (size_t)first_row * lksi_states_row_nbytes(trainer, i)));
    return LKS_OK;
}

lks_status lksi_states_advance(const lks_trainer *trainer, lksi_states *states, int64_t first_row, int64_t n_rows,
                               const lks_program *program) {
    for (int i = 0; i < trainer->options.n_states; i++)
        LKS_TRY(lksi_device_copy(device_of(trainer),
                                 states->values[i] + (size_t)first_row * lksi_states_row_nbytes(trainer, i),
                                 lksi_program_output_there(program, trainer->options.states[i].output),
                                 (size_t)n_rows * lksi_states_row_nbytes(trainer, i)));
    return LKS_OK;
}

/* An error on a GPU is returned by the next step. */
void lks_trainer_reset_states(lks_trainer *trainer) {
    if (lksi_check_given("trainer_reset_states", "trainer", trainer) != LKS_OK) return;
    (void)lksi_states_clear(trainer, &trainer->states);
    trainer->seats = (lksi_seats){0};
}
