/* A small GPT: predicts each character (or word) of a text from those before it in the same window.
 *
 *     lockstep run -n 2 build/examples/transformer --data DIR --epochs 5
 *
 * DIR holds Penn Treebank's ptb.train.txt, ptb.valid.txt and ptb.test.txt, or any other text in three such files.
 * The model is an embedding plus learned positions, causal transformer blocks, layer norm, and a linear layer to the
 * vocabulary. The optimizer is AdamW with a warm-up. Source: Radford et al., "Language models are unsupervised
 * multitask learners", 2019. */
#include "trainer_text.h"

#include <stdio.h>

typedef struct model_flags {
    trainer_flags shared;
    int64_t level, context, hidden, layers, heads, decay;
    double dropout, clip;
} model_flags;

enum { WARM_UP_STEPS = 100 };

typedef struct model {
    lks_node *tokens, *labels, *logits, *loss;
} model;

static model build(lks_graph *g, int64_t n_words, const model_flags *flags) {
    static const lks_initializer small = {LKS_INITIAL_NORMAL, 0.02};
    int64_t t = flags->context, k = flags->hidden;
    model m = {.tokens = lks_input(g, "tokens", LKS_I32, 2, (int64_t[]){LKS_BATCH, t}),
               .labels = lks_input(g, "next_tokens", LKS_I32, 2, (int64_t[]){LKS_BATCH, t})};
    lks_node *x = lks_embedding(m.tokens, n_words, k, "embedding", &small);
    x = lks_add(x, lks_parameter(g, "positions.weight", 2, (int64_t[]){t, k}, small));
    if (flags->dropout > 0) x = lks_dropout(x, flags->dropout);
    for (int i = 0; i < flags->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", i);
        x = lks_transformer_block(
            x, name,
            &(lks_transformer_options){.n_heads = (int)flags->heads, .dropout = flags->dropout, .is_causal = 1});
    }
    m.logits = lks_linear_with(lks_layer_norm(x, "norm"), n_words, "decoder",
                               &(lks_linear_options){.no_bias = 1, .weight = &small});
    m.loss = trainer_text_loss(m.logits, m.labels);
    return m;
}

static int train(const model_flags *flags, lks_group *group, lks_device *device, trainer_text *text) {
    lks_graph *g = lks_graph_create(device);
    model m = build(g, lks_text_n_words(text->text), flags);
    trainer_job job = {.name = "transformer",
                       .group = group,
                       .device = device,
                       .loss = m.loss,
                       .features = m.tokens,
                       .labels = m.labels,
                       .optimizer = lks_adamw(&(lks_adamw_options){
                           .lr = flags->shared.lr,
                           .beta2 = 0.99, /* for few steps: a short memory */
                           .schedule = trainer_text_schedule(text, &flags->shared, flags->decay, WARM_UP_STEPS),
                           .clip_norm = flags->clip}),
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
            trainer_text_create(&text, directory, (lks_text_level)flags->level, flags->context, &flags->shared, group);
    int exit_code =
        trainer_all_ok(group, status) ? train(flags, group, device, &text) : trainer_begin_exit_code(status);
    trainer_text_destroy(&text);
    lks_device_destroy(device);
    return exit_code;
}

static int transformer(int argc, char **argv) {
    model_flags flags = {.shared = {.batch = 32, .lr = 1e-3, .seed = 1, .num_threads = 1},
                         .level = LKS_TEXT_CHARACTERS,
                         .context = 128,
                         .hidden = 128,
                         .layers = 4,
                         .heads = 4,
                         .decay = TRAINER_DECAY_COSINE,
                         .dropout = 0.1,
                         .clip = 1};
    const trainer_flag own[] = {
        {"--level", "what a token is: word, character (character)", .value = &flags.level, .choices = "word|character"},
        {"--context", "tokens that a step reads, and attention sees (128)", .value = &flags.context, .min = 1,
         .max = 65536},
        {"--hidden", "features of a token (128)", .value = &flags.hidden, .min = 1, .max = 65536},
        {"--layers", "transformer blocks (4)", .value = &flags.layers, .min = 1, .max = 1000},
        {"--heads", "attention heads, which divide the features (4)", .value = &flags.heads, .min = 1, .max = 65536},
        {"--dropout", "part of the activations that is dropped (0.1)", .real = &flags.dropout, .max = 1,
         .may_change = 1},
        {"--clip", "largest norm of a gradient; 0: any (1)", .real = &flags.clip, .max = 1000000},
        {"--decay", "of the learning rate over the run: none, linear, cosine (cosine)", .value = &flags.decay,
         .choices = "none|linear|cosine"},
        {.name = NULL}};
    trainer_flags_parse(&flags.shared, own, argc, argv);
    if (flags.shared.epochs == 0 && flags.shared.steps == 0) flags.shared.epochs = 5;
    if (flags.hidden % flags.heads != 0 && flags.shared.error[0] == '\0')
        snprintf(flags.shared.error, sizeof flags.shared.error, "--heads %lld does not divide --hidden %lld",
                 (long long)flags.heads, (long long)flags.hidden);
    lks_group *group;
    int exit_code;
    if (trainer_begin(&flags.shared, own, argv, &group, &exit_code)) return exit_code;
    exit_code = run(&flags, group);
    lks_group_destroy(group);
    return exit_code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, transformer); }
