/* The MPI module: the only file that includes <mpi.h>. It is built once for each MPI that is found. */
#include "comm/transport/mpi/module.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_MPI(call)                                                                                                  \
    do {                                                                                                               \
        int try_code_ = (call);                                                                                        \
        if (try_code_ != MPI_SUCCESS) return try_code_;                                                                \
    } while (0)

/* A transfer with its message behind it in one allocation. It uses malloc, not the counted allocator: a message that is
 * never received outlives its group. */
typedef struct transfer {
    lksi_mpi_transfer shown;
    struct transfer *next; /* in the list `background` */
    MPI_Request request;
    bool is_collective, is_duplication, is_sent, is_released;
} transfer;

struct lksi_mpi_communicator {
    MPI_Comm handle;
};

static MPI_Comm ours = MPI_COMM_NULL; /* our duplicate of MPI_COMM_WORLD */
static bool is_ours, is_settling;
/* Messages sent whose receive is not known to have begun, and received ones released before they were done. */
static transfer *background;
static long n_pending; /* the former */
static MPI_Request last_barrier = MPI_REQUEST_NULL;
static void (*call_before_end)(void);

static transfer *transfer_create(size_t nbytes) {
    transfer *created = malloc(sizeof *created + nbytes);
    if (created == NULL) return NULL;
    *created = (transfer){.request = MPI_REQUEST_NULL};
    created->shown.data = (unsigned char *)(created + 1);
    created->shown.nbytes = nbytes;
    return created;
}

/* --- MPI itself --- */

static void describe(char *text, size_t text_nbytes) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS) strcpy(version, "unknown");
    version[strcspn(version, "\n")] = '\0';
    for (char *each = version; *each != '\0'; each++)
        if (*each == '\t') *each = ' ';
    snprintf(text, text_nbytes, "%s", version);
}

static void explain(int code, char *text, size_t text_nbytes) {
    char reason[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (MPI_Error_string(code, reason, &length) != MPI_SUCCESS) snprintf(reason, sizeof reason, "error %d", code);
    reason[strcspn(reason, "\n")] = '\0';
    snprintf(text, text_nbytes, "%s", reason);
}

static bool is_finalised(void) {
    int is_over = 1;
    return MPI_Finalized(&is_over) != MPI_SUCCESS || is_over;
}

static int end_is_near(MPI_Comm self, int key, void *value, void *extra) {
    (void)self, (void)key, (void)value, (void)extra;
    call_before_end();
    return MPI_SUCCESS;
}

/* MPI_Finalize first deletes the attributes of MPI_COMM_SELF, which calls end_is_near (MPI-3.1, section 8.7.1). */
static int announce_end(void (*before_end)(void)) {
    int key;
    if (call_before_end != NULL) return MPI_SUCCESS; /* an earlier start registered it and then failed */
    TRY_MPI(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end_is_near, &key, NULL));
    TRY_MPI(MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL));
    call_before_end = before_end;
    return MPI_Comm_free_keyval(&key);
}

static int start(lksi_mpi_facts *facts, void (*before_end)(void)) {
    int is_initialised, level, has_most;
    int *most;
    TRY_MPI(MPI_Initialized(&is_initialised));
    if (is_initialised && is_finalised()) return MPI_SUCCESS; /* no further MPI call is allowed */
    is_ours |= !is_initialised; /* stays set if an earlier start initialised MPI and then failed */
    if (!is_initialised)
        TRY_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level));
    else
        TRY_MPI(MPI_Query_thread(&level));
    TRY_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &facts->rank));
    TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &facts->size));
    TRY_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &has_most));
    facts->most_tag = has_most ? *most : 32767; /* the minimum that the standard guarantees */
    facts->is_ours = is_ours;
    facts->is_multiple = level >= MPI_THREAD_MULTIPLE;
    facts->may_thread = level >= (is_ours ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE);
    return announce_end(before_end);
}

static int duplicate(lksi_mpi_transfer **begun) {
    transfer *created = transfer_create(0);
    if (created == NULL) return MPI_ERR_NO_MEM;
    int code = MPI_Comm_idup(MPI_COMM_WORLD, &ours, &created->request);
    created->is_collective = created->is_duplication = true;
    if (code == MPI_SUCCESS)
        *begun = &created->shown;
    else
        free(created);
    return code;
}

/* --- messages --- */

/* Tests transfers in the background, or only those that nobody else tests, and frees those that nobody needs. */
static int sweep(bool has_all) {
    for (transfer **link = &background; *link != NULL;) {
        transfer *each = *link;
        int is_done = 0;
        if (has_all || each->is_released) TRY_MPI(MPI_Test(&each->request, &is_done, MPI_STATUS_IGNORE));
        if (!is_done) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        if (each->is_sent) n_pending--;
        each->is_sent = false;
        if (each->is_released) free(each);
    }
    return MPI_SUCCESS;
}

static void put_in_background(transfer *one) {
    one->next = background;
    background = one;
}

/* A synchronous send is done only when its receive has begun. That bounds the number of messages in transit to a
 * receiver. */
static int send(int to, int tag, const struct iovec *parts, int n_parts, lksi_mpi_transfer **begun) {
    size_t nbytes = 0;
    for (int i = 0; i < n_parts; i++) nbytes += parts[i].iov_len;
    TRY_MPI(sweep(false));
    transfer *created = transfer_create(nbytes);
    if (created == NULL) return MPI_ERR_NO_MEM;
    unsigned char *end = created->shown.data;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].iov_len > 0) memcpy(end, parts[i].iov_base, parts[i].iov_len);
        end += parts[i].iov_len;
    }
    int code = MPI_Issend(created->shown.data, (int)nbytes, MPI_BYTE, to, tag, ours, &created->request);
    if (code != MPI_SUCCESS) {
        free(created);
        return code;
    }
    created->is_sent = true;
    n_pending++;
    put_in_background(created);
    *begun = &created->shown;
    return MPI_SUCCESS;
}

static int receive(int from, int tag, lksi_mpi_transfer **begun) {
    MPI_Message message;
    MPI_Status status;
    int is_there, nbytes;
    *begun = NULL;
    TRY_MPI(MPI_Improbe(from == LKSI_MPI_ANY_SOURCE ? MPI_ANY_SOURCE : from, tag, ours, &is_there, &message, &status));
    if (!is_there) return MPI_SUCCESS;
    TRY_MPI(MPI_Get_count(&status, MPI_BYTE, &nbytes));
    transfer *created = transfer_create((size_t)nbytes);
    if (created == NULL) return MPI_ERR_NO_MEM;
    created->shown.source = status.MPI_SOURCE;
    int code = MPI_Imrecv(created->shown.data, nbytes, MPI_BYTE, &message, &created->request);
    if (code == MPI_SUCCESS)
        *begun = &created->shown;
    else
        free(created);
    return code;
}

static int test(lksi_mpi_transfer *shown, bool *is_done) {
    transfer *tested = (transfer *)(void *)shown;
    int flag;
    TRY_MPI(MPI_Test(&tested->request, &flag, MPI_STATUS_IGNORE)); /* also true if the background has tested it */
    *is_done = flag;
    return flag && tested->is_duplication ? MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN) : MPI_SUCCESS;
}

static void release(lksi_mpi_transfer *shown) {
    transfer *released = (transfer *)(void *)shown;
    if (released == NULL) return;
    released->is_released = true;
    if (released->is_sent) return; /* it is in the background */
    if (released->request == MPI_REQUEST_NULL || released->is_collective)
        free(released);
    else
        put_in_background(released);
}

static int progress(bool *is_pending) {
    int is_there;
    TRY_MPI(sweep(true));
    TRY_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ours, &is_there, MPI_STATUS_IGNORE));
    *is_pending = n_pending > 0;
    return MPI_SUCCESS;
}

/* --- collectives --- */

/* Types that are moved but not reduced only need the right length: f16 and bf16 are sent as 16-bit integers. */
static MPI_Datatype type_of(const lksi_mpi_collective *c) {
    switch (c->type) {
    case LKS_F32:
        return MPI_FLOAT;
    case LKS_F64:
        return MPI_DOUBLE;
    case LKS_F16:
    case LKS_BF16:
        return MPI_UINT16_T;
    case LKS_I8:
        return MPI_INT8_T;
    case LKS_U8:
        return MPI_UINT8_T;
    case LKS_I32:
        return MPI_INT32_T;
    case LKS_I64:
        return MPI_INT64_T;
    }
    return MPI_DATATYPE_NULL;
}

static MPI_Op operator_of(const lksi_mpi_collective *c) {
    switch (c->op) {
    case LKS_SUM:
    case LKS_AVG: /* the library divides */
        return MPI_SUM;
    case LKS_PRODUCT:
        return MPI_PROD;
    case LKS_MIN:
        return MPI_MIN;
    case LKS_MAX:
        return MPI_MAX;
    case LKS_BAND:
        return MPI_BAND;
    case LKS_BOR:
        return MPI_BOR;
    case LKS_BXOR:
        return MPI_BXOR;
    }
    return MPI_OP_NULL;
}

/* The type and count of a block: one element of a derived type if blocks have gaps, otherwise `count` elements. */
typedef struct block {
    MPI_Datatype type;
    int count;
    bool is_made;
} block;

static int block_make(const lksi_mpi_collective *c, size_t stride, block *made) {
    MPI_Datatype whole;
    MPI_Aint least, each;
    *made = (block){type_of(c), c->count, false};
    if (stride == 0) return MPI_SUCCESS;
    TRY_MPI(MPI_Type_get_extent(type_of(c), &least, &each));
    TRY_MPI(MPI_Type_contiguous(c->count, type_of(c), &whole));
    int code = MPI_Type_create_resized(whole, 0, (MPI_Aint)stride * each, &made->type);
    MPI_Type_free(&whole);
    TRY_MPI(code);
    made->count = 1, made->is_made = true;
    return MPI_Type_commit(&made->type);
}

/* MPI keeps a freed type until the communication that uses it is done. */
static void block_free(block *made) {
    if (made->is_made) MPI_Type_free(&made->type);
}

static int begin_blocks(const lksi_mpi_collective *c, const block *in, const block *out, MPI_Comm comm,
                        MPI_Request *request) {
    const void *from = c->in != NULL ? c->in : MPI_IN_PLACE;
    void *to = c->out != NULL ? c->out : MPI_IN_PLACE;
    bool is_root = c->rank == c->root;
    switch (c->kind) {
    case LKSI_MPI_GATHER:
        return MPI_Igather(from, in->count, in->type, is_root ? to : NULL, out->count, out->type, c->root, comm,
                           request);
    case LKSI_MPI_SCATTER:
        return MPI_Iscatter(is_root ? from : NULL, in->count, in->type, to, out->count, out->type, c->root, comm,
                            request);
    case LKSI_MPI_ALL_GATHER:
        return MPI_Iallgather(from, in->count, in->type, to, out->count, out->type, comm, request);
    default:
        return MPI_Ialltoall(from, in->count, in->type, to, out->count, out->type, comm, request);
    }
}

static int begin_reduction(const lksi_mpi_collective *c, MPI_Comm comm, MPI_Request *request) {
    const void *from = c->in != NULL ? c->in : MPI_IN_PLACE;
    MPI_Datatype type = type_of(c);
    MPI_Op op = operator_of(c);
    if (c->kind == LKSI_MPI_REDUCE) return MPI_Ireduce(from, c->out, c->count, type, op, c->root, comm, request);
    if (c->kind == LKSI_MPI_ALL_REDUCE) return MPI_Iallreduce(from, c->out, c->count, type, op, comm, request);
    if (c->kind == LKSI_MPI_REDUCE_SCATTERV)
        return MPI_Ireduce_scatter(from, c->out, c->counts, type, op, comm, request);
    return MPI_Ireduce_scatter_block(from, c->out, c->count, type, op, comm, request);
}

static int begin_uneven(const lksi_mpi_collective *c, MPI_Comm comm, MPI_Request *request) {
    const void *from = c->in != NULL ? c->in : MPI_IN_PLACE;
    void *to = c->out != NULL ? c->out : MPI_IN_PLACE;
    MPI_Datatype type = type_of(c);
    bool is_root = c->rank == c->root;
    int mine = c->counts[c->rank];
    if (c->kind == LKSI_MPI_ALL_TO_ALLV)
        return MPI_Ialltoallv(from, c->counts, c->begins, type, to, c->out_counts, c->out_begins, type, comm, request);
    if (c->kind == LKSI_MPI_GATHERV)
        return MPI_Igatherv(from, mine, type, is_root ? to : NULL, c->counts, c->begins, type, c->root, comm, request);
    if (c->kind == LKSI_MPI_SCATTERV)
        return MPI_Iscatterv(is_root ? from : NULL, c->counts, c->begins, type, to, mine, type, c->root, comm, request);
    return MPI_Iallgatherv(from, mine, type, to, c->counts, c->begins, type, comm, request);
}

static int begin(const lksi_mpi_collective *c, MPI_Request *request) {
    MPI_Comm comm = c->communicator != NULL ? c->communicator->handle : ours;
    block in = {.is_made = false}, out = {.is_made = false};
    int code;
    switch (c->kind) {
    case LKSI_MPI_BARRIER:
        return MPI_Ibarrier(comm, request);
    case LKSI_MPI_BROADCAST:
        return MPI_Ibcast(c->out, c->count, type_of(c), c->root, comm, request);
    case LKSI_MPI_REDUCE:
    case LKSI_MPI_ALL_REDUCE:
    case LKSI_MPI_REDUCE_SCATTER:
    case LKSI_MPI_REDUCE_SCATTERV:
        return begin_reduction(c, comm, request);
    case LKSI_MPI_GATHERV:
    case LKSI_MPI_SCATTERV:
    case LKSI_MPI_ALL_GATHERV:
    case LKSI_MPI_ALL_TO_ALLV:
        return begin_uneven(c, comm, request);
    default:
        code = block_make(c, c->in_stride, &in);
        if (code == MPI_SUCCESS) code = block_make(c, c->out_stride, &out);
        if (code == MPI_SUCCESS) code = begin_blocks(c, &in, &out, comm, request);
        block_free(&in);
        block_free(&out);
        return code;
    }
}

static int collective(const lksi_mpi_collective *asked, lksi_mpi_transfer **begun) {
    transfer *created = transfer_create(0);
    if (created == NULL) return MPI_ERR_NO_MEM;
    created->is_collective = true;
    int code = begin(asked, &created->request);
    if (code == MPI_SUCCESS)
        *begun = &created->shown;
    else
        free(created);
    return code;
}

/* --- communicators --- */

static int make_handle(const int *ranks, int n_ranks, int tag, MPI_Comm *handle) {
    MPI_Group all, some;
    TRY_MPI(MPI_Comm_group(ours, &all));
    int code = MPI_Group_incl(all, n_ranks, ranks, &some);
    MPI_Group_free(&all);
    TRY_MPI(code);
    code = MPI_Comm_create_group(ours, some, tag, handle);
    MPI_Group_free(&some);
    TRY_MPI(code);
    return MPI_Comm_set_errhandler(*handle, MPI_ERRORS_RETURN); /* with MPICH it is not inherited */
}

static int make_communicator(const int *ranks, int n_ranks, int tag, lksi_mpi_communicator **communicator) {
    lksi_mpi_communicator *made = malloc(sizeof *made);
    if (made == NULL) return MPI_ERR_NO_MEM;
    int code = make_handle(ranks, n_ranks, tag, &made->handle);
    if (code == MPI_SUCCESS)
        *communicator = made;
    else
        free(made);
    return code;
}

static void free_communicator(lksi_mpi_communicator *communicator) {
    if (communicator == NULL) return;
    MPI_Comm_free(&communicator->handle);
    free(communicator);
}

/* --- the end --- */

/* A rank enters the barrier only when none of its messages is in progress. So after the barrier no rank has any. */
static int settle(bool *is_done) {
    lksi_mpi_transfer *unwanted;
    int is_over = 0;
    do {
        TRY_MPI(receive(LKSI_MPI_ANY_SOURCE, MPI_ANY_TAG, &unwanted));
        release(unwanted);
    } while (unwanted != NULL);
    TRY_MPI(sweep(true));
    if (background == NULL && !is_settling) {
        TRY_MPI(MPI_Ibarrier(ours, &last_barrier));
        is_settling = true;
    }
    if (is_settling) TRY_MPI(MPI_Test(&last_barrier, &is_over, MPI_STATUS_IGNORE));
    *is_done = is_over;
    return MPI_SUCCESS;
}

static int finish(void) {
    TRY_MPI(MPI_Comm_free(&ours));
    return is_ours ? MPI_Finalize() : MPI_SUCCESS;
}

__attribute__((visibility("default"))) extern const lksi_mpi_module lksi_mpi_module_functions;
const lksi_mpi_module lksi_mpi_module_functions = {
    .version = LKSI_MPI_MODULE_VERSION,
    .describe = describe,
    .explain = explain,
    .start = start,
    .is_finalised = is_finalised,
    .duplicate = duplicate,
    .send = send,
    .receive = receive,
    .collective = collective,
    .test = test,
    .release = release,
    .progress = progress,
    .make_communicator = make_communicator,
    .free_communicator = free_communicator,
    .settle = settle,
    .finish = finish,
};
