/* A recurrent language model: predicts each word of a text from the words before it.
 *
 *     lockstep run -n 2 build/examples/language_model --data DIR --epochs 13
 *
 * DIR holds Penn Treebank's ptb.train.txt, ptb.valid.txt and ptb.test.txt, or any other text in three such files. The
 * text is arranged in parallel columns. Each step reads the next --bptt words of every column. It begins with the final
 * state of the previous step, but no gradient flows back into that step (truncated backpropagation through time).
 * The defaults are those of a small LSTM: Zaremba, Sutskever, Vinyals, "Recurrent neural network regularization", 2014.
 * The optimizer is SGD with a cosine schedule. Perplexity is exp(loss). */
#include "trainer_text.h"

#include <stdio.h>

typedef struct model_flags {
    trainer_flags shared;
    int64_t cell, level, hidden, layers, bptt, optimizer, decay;
    double dropout, clip;
} model_flags;

enum { CELL_LSTM, CELL_RNN };
enum { OPTIMIZER_SGD, OPTIMIZER_ADAM };

typedef struct model {
    lks_node *words, *labels, *logits, *loss;
    lks_state states[2 * LKS_MAX_LAYERS]; /* h of every layer, then c of every layer */
    int n_states;
} model;

static lks_node *add_state(lks_graph *g, const char *kind, int layer, int64_t hidden) {
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, layer);
    return lks_input(g, name, LKS_F32, 2, (int64_t[]){LKS_BATCH, hidden});
}

static lks_node *recurrent_layers(model *m, lks_node *x, const model_flags *flags) {
    lks_recurrent_options options = {.kind = flags->cell == CELL_LSTM ? LKS_LSTM : LKS_RNN_TANH,
                                     .hidden = flags->hidden,
                                     .n_layers = (int)flags->layers,
                                     .dropout = flags->dropout};
    for (int i = 0; i < flags->layers; i++) {
        options.h0[i] = add_state(lks_node_graph(x), "h", i, flags->hidden);
        if (flags->cell == CELL_LSTM) options.c0[i] = add_state(lks_node_graph(x), "c", i, flags->hidden);
    }
    lks_recurrent_result result = lks_recurrent_layers(x, "rnn", &options);
    for (int i = 0; i < flags->layers; i++) m->states[m->n_states++] = (lks_state){options.h0[i], result.h[i]};
    for (int i = 0; i < flags->layers && flags->cell == CELL_LSTM; i++)
        m->states[m->n_states++] = (lks_state){options.c0[i], result.c[i]};
    return result.y;
}

static lks_node *drop(lks_node *x, double dropout) { return dropout > 0 ? lks_dropout(x, dropout) : x; }

static model build(lks_graph *g, int64_t n_words, const model_flags *flags) {
    static const lks_initializer small = {LKS_INITIAL_UNIFORM, 0.1};
    model m = {.words = lks_input(g, "words", LKS_I32, 2, (int64_t[]){LKS_BATCH, flags->bptt}),
               .labels = lks_input(g, "next_words", LKS_I32, 2, (int64_t[]){LKS_BATCH, flags->bptt})};
    lks_node *x = drop(lks_embedding(m.words, n_words, flags->hidden, "encoder", &small), flags->dropout);
    x = drop(recurrent_layers(&m, x, flags), flags->dropout);
    m.logits = lks_linear_with(x, n_words, "decoder", &(lks_linear_options){.weight = &small});
    m.loss = trainer_text_loss(m.logits, m.labels);
    return m;
}

static lks_optimizer choose_optimizer(const model_flags *flags, lks_schedule schedule) {
    double lr = flags->shared.lr;
    if (flags->optimizer == OPTIMIZER_ADAM)
        return lks_adam(&(lks_adam_options){.lr = lr, .schedule = schedule, .clip_norm = flags->clip});
    return lks_sgd(&(lks_sgd_options){.lr = lr, .schedule = schedule, .clip_norm = flags->clip});
}

static int train(const model_flags *flags, lks_group *group, lks_device *device, trainer_text *text) {
    lks_graph *g = lks_graph_create(device);
    model m = build(g, lks_text_n_words(text->text), flags);
    lks_schedule schedule = trainer_text_schedule(text, &flags->shared, flags->decay, 0);
    trainer_job job = {.name = "language_model",
                       .group = group,
                       .device = device,
                       .loss = m.loss,
                       .features = m.words,
                       .labels = m.labels,
                       .states = m.states,
                       .n_states = m.n_states,
                       .optimizer = choose_optimizer(flags, schedule),
                       .source = &text->source,
                       .has_validation = 1,
                       .shows_perplexity = 1};
    int exit_code = trainer_run(&job, &flags->shared);
    lks_graph_destroy(g);
    return exit_code;
}

static int run(const model_flags *flags, lks_group *group) {
    char directory[4096];
    lks_device *device = NULL;
    trainer_text text = {0};
    lks_status status = trainer_data(&flags->shared, group, "ptb", directory, sizeof directory);
    if (status == LKS_OK) status = trainer_device_create(&device, &flags->shared, group);
    if (status == LKS_OK)
        status =
            trainer_text_create(&text, directory, (lks_text_level)flags->level, flags->bptt, &flags->shared, group);
    int exit_code =
        trainer_all_ok(group, status) ? train(flags, group, device, &text) : trainer_begin_exit_code(status);
    trainer_text_destroy(&text);
    lks_device_destroy(device);
    return exit_code;
}

static int language_model(int argc, char **argv) {
    model_flags flags = {.shared = {.batch = 20, .seed = 1, .num_threads = 1},
                         .hidden = 200,
                         .layers = 2,
                         .bptt = 35,
                         .decay = TRAINER_DECAY_COSINE,
                         .dropout = 0.2,
                         .clip = 0.25};
    const trainer_flag own[] = {
        {"--cell", "lstm, rnn (lstm)", .value = &flags.cell, .choices = "lstm|rnn"},
        {"--level", "what a token is: word, character (word)", .value = &flags.level, .choices = "word|character"},
        {"--hidden", "units of a layer, and features of a word (200)", .value = &flags.hidden, .min = 1, .max = 65536},
        {"--layers", "recurrent layers (2)", .value = &flags.layers, .min = 1, .max = LKS_MAX_LAYERS},
        {"--bptt", "words that a step reads, and gradients go back (35)", .value = &flags.bptt, .min = 1, .max = 65536},
        {"--dropout", "part of each layer's input that is dropped (0.2)", .real = &flags.dropout, .max = 1,
         .may_change = 1},
        {"--clip", "largest norm of a gradient; 0: any (0.25)", .real = &flags.clip, .max = 1000000},
        {"--optimizer", "sgd (lr 20), adam (lr 0.002) (sgd)", .value = &flags.optimizer, .choices = "sgd|adam"},
        {"--decay", "of the learning rate over the run: none, linear, cosine (cosine)", .value = &flags.decay,
         .choices = "none|linear|cosine"},
        {.name = NULL}};
    trainer_flags_parse(&flags.shared, own, argc, argv);
    if (flags.shared.epochs == 0 && flags.shared.steps == 0) flags.shared.epochs = 13;
    if (flags.shared.lr == 0) flags.shared.lr = flags.optimizer == OPTIMIZER_ADAM ? 2e-3 : 20;
    lks_group *group;
    int exit_code;
    if (trainer_begin(&flags.shared, own, argv, &group, &exit_code)) return exit_code;
    exit_code = run(&flags, group);
    lks_group_destroy(group);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, language_model); }
