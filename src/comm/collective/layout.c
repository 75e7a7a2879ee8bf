/* Cutting buffers into blocks, and exchanging blocks. */
#include "comm/collective/collective.h"

lksi_block_layout lksi_block_layout_of(const lks_group *group, const lksi_call *call) {
    if (call->counts != NULL)
        return (lksi_block_layout){.counts = call->counts, .each = lksi_type_nbytes(call->type), .total = call->nbytes};
    return (lksi_block_layout){.share = call->nbytes, .total = call->nbytes * (size_t)group->size};
}

lksi_block_layout lksi_block_layout_of_out(const lks_group *group, const lksi_call *call) {
    if (call->out_counts == NULL) return lksi_block_layout_of(group, call);
    return (lksi_block_layout){.counts = call->out_counts, .each = lksi_type_nbytes(call->type)};
}

lksi_block_layout lksi_block_layout_slices(size_t nbytes, int n) {
    size_t share = (nbytes + (size_t)n - 1) / (size_t)n;
    share = (share + LKSI_LINE_NBYTES - 1) / LKSI_LINE_NBYTES * LKSI_LINE_NBYTES;
    return (lksi_block_layout){.share = share, .total = nbytes};
}

lksi_extent lksi_blocks(const lksi_block_layout *layout, int first, int n) {
    size_t begin = 0, end = 0;
    if (layout->counts == NULL) {
        begin = lksi_least((size_t)first * layout->share, layout->total);
        end = lksi_least((size_t)(first + n) * layout->share, layout->total);
        return (lksi_extent){begin, end - begin};
    }
    for (int rank = 0; rank < first; rank++) begin += layout->counts[rank];
    for (int rank = first; rank < first + n; rank++) end += layout->counts[rank];
    return (lksi_extent){begin * layout->each, end * layout->each};
}

size_t lksi_block_layout_longest(const lks_group *group, const lksi_block_layout *layout) {
    if (layout->counts == NULL) return lksi_least(layout->share, layout->total);
    size_t longest = 0;
    for (int rank = 0; rank < group->size; rank++)
        if (layout->counts[rank] > longest) longest = layout->counts[rank];
    return longest * layout->each;
}

lks_status lksi_exchange_blocks(lks_group *group, const lksi_call *call, void *buffer, const lksi_block_layout *layout,
                                const lksi_block_exchange *exchange) {
    lksi_extent sent = lksi_blocks(layout, exchange->first_sent, exchange->n_sent);
    lksi_extent received = lksi_blocks(layout, exchange->first_received, exchange->n_received);
    unsigned char *from = lksi_at(buffer, sent.begin), *to = lksi_at(buffer, received.begin);
    if (exchange->n_sent > 0 && exchange->n_received > 0)
        return lksi_step_exchange(group, call, exchange->to, from, sent.nbytes, exchange->from, to, received.nbytes);
    if (exchange->n_sent > 0) return lksi_step_send(group, call, exchange->to, from, sent.nbytes);
    if (exchange->n_received > 0) return lksi_step_receive(group, call, exchange->from, to, received.nbytes);
    return LKS_OK;
}
