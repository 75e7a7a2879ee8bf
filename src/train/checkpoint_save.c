/* Saving: all ranks contribute to the image, and rank 0 writes it. */
#include "train/checkpoint.h"

#include "base/timeline.h"

static lks_status declare(const lks_trainer *trainer, const lksi_checkpoint *c, lksi_safetensors_writer *writer) {
    for (size_t i = 0; i < c->n_items; i++) {
        lks_parameter_view view = lks_store_parameter(trainer->store, c->items[i].tensor);
        LKS_TRY(lksi_safetensors_declare(writer, c->items[i].name, view.type, view.n_dims, view.dims));
    }
    LKS_TRY(lksi_checkpoint_declare_states(trainer, c, writer));
    LKS_TRY(lksi_safetensors_declare(writer, LKSI_OPTIONS_NAME, LKS_U8, 1, (int64_t[]){LKSI_OPTIONS_NBYTES}));
    LKS_TRY(lksi_safetensors_declare(writer, LKSI_COUNTERS_NAME, LKS_I64, 1, (int64_t[]){LKSI_N_COUNTERS}));
    return lksi_safetensors_declare(writer, LKSI_RULE_NAME, LKS_F64, 1, (int64_t[]){LKSI_N_RULE});
}

static lks_status append(lksi_safetensors_writer *writer, const char *image, size_t nbytes) {
    enum { PIECE_NBYTES = LKSI_NEW_FILE_PIECE_NBYTES };
    for (size_t done = 0; done < nbytes; done += PIECE_NBYTES)
        LKS_TRY(
            lksi_safetensors_append(writer, image + done, nbytes - done < PIECE_NBYTES ? nbytes - done : PIECE_NBYTES));
    return LKS_OK;
}

lks_status lksi_checkpoint_write(const lks_trainer *trainer, const lksi_checkpoint *c, const char *path) {
    int64_t section_ns = lksi_timeline_begin();
    lksi_safetensors_writer *writer;
    LKS_TRY(lksi_safetensors_writer_create(&writer));
    lks_status status = declare(trainer, c, writer);
    if (status == LKS_OK) status = lksi_safetensors_begin(writer, path);
    if (status == LKS_OK) status = append(writer, c->image, c->image_nbytes);
    if (status == LKS_OK) status = lksi_safetensors_finish(writer);
    lksi_safetensors_writer_destroy(writer);
    lksi_timeline_end(section_ns, "checkpoint", "write checkpoint");
    return status;
}

static lks_status save(lks_trainer *trainer, lksi_checkpoint *c, const char *path, const lks_position *position) {
    lks_status status = lksi_checkpoint_create(c, trainer);
    if (status == LKS_OK) status = lksi_checkpoint_check_position(trainer, path, position);
    LKS_TRY(lksi_checkpoint_agree(trainer, "trainer_save", path, status, 0));
    LKS_TRY(lksi_checkpoint_make_room(trainer, c, path, position));
    LKS_TRY(lksi_checkpoint_snapshot(trainer, c, position, &status));
    if (status == LKS_OK && c->image != NULL) status = lksi_checkpoint_write(trainer, c, path);
    return lksi_checkpoint_agree(trainer, "trainer_save (end)", path, status, 0);
}

lks_status lks_trainer_save(lks_trainer *trainer, const char *path, const lks_position *position) {
    lksi_checkpoint c;
    LKS_TRY(lksi_checkpoint_check_given("trainer_save", "trainer", trainer, path, position));
    lks_status status = save(trainer, &c, path, position);
    lksi_checkpoint_destroy(&c);
    return status;
}
