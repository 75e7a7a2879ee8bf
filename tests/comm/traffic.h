/* Many messages at once between all ranks, in an order of each rank's own, checked byte by byte. */
#ifndef LKSI_TRAFFIC_H
#define LKSI_TRAFFIC_H

#include "base/base.h"
#include "ranks.h"

enum { N_PER_PAIR = 8, MOST_TRAFFIC_NBYTES = 200000, N_TRAFFIC_TAGS = 3 };

/* Length, tag and bytes of message `k` from `from` to `to`. Every rank can compute them. */
static inline size_t traffic_nbytes(uint64_t seed, int from, int to, int k) {
    static const size_t edges[] = {0, 1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 65536, MOST_TRAFFIC_NBYTES};
    uint64_t draw = lksi_random_below(seed, (uint64_t)(from * 64 + to), (uint64_t)k, 14);
    return draw < 7 ? edges[draw] : lksi_random_below(seed, (uint64_t)(from * 64 + to), (uint64_t)k + 100, 40000);
}
static inline int traffic_tag(uint64_t seed, int from, int to, int k) {
    return (int)lksi_random_below(seed, (uint64_t)(from * 64 + to), (uint64_t)k + 200, N_TRAFFIC_TAGS);
}
static inline unsigned char traffic_byte(int from, int to, int k, size_t i) {
    return (unsigned char)(i * 7 + (size_t)(from * 31 + to * 17 + k * 5) + (i >> 8));
}

typedef struct traffic_item {
    lks_work *work;
    unsigned char *data;
    lks_received received;
    int from, to, k;
} traffic_item;

static inline int send_one(lks_group *group, uint64_t seed, traffic_item *item) {
    int tag = traffic_tag(seed, item->from, item->to, item->k);
    size_t nbytes = traffic_nbytes(seed, item->from, item->to, item->k);
    item->data = lksi_alloc(nbytes + 1);
    for (size_t i = 0; i < nbytes; i++) item->data[i] = traffic_byte(item->from, item->to, item->k, i);
    MUST_OK(lks_isend(group, item->data, nbytes, LKS_U8, item->to, tag, &item->work));
    return 0;
}

static inline int post_one(lks_group *group, uint64_t seed, traffic_item *item) {
    int tag = traffic_tag(seed, item->from, item->to, item->k);
    size_t nbytes = traffic_nbytes(seed, item->from, item->to, item->k);
    item->data = lksi_alloc(nbytes + 1);
    MUST_OK(lks_irecv(group, item->data, nbytes, LKS_U8, item->from, tag, &item->received, &item->work));
    return 0;
}

static inline int finish_one(uint64_t seed, traffic_item *item, bool is_send) {
    size_t nbytes = traffic_nbytes(seed, item->from, item->to, item->k);
    MUST_OK(lks_work_wait(item->work));
    if (!is_send) {
        MUST(item->received.count == nbytes && item->received.from == item->from);
        for (size_t i = 0; i < nbytes; i++) MUST(item->data[i] == traffic_byte(item->from, item->to, item->k, i));
    }
    lksi_free(item->data);
    item->work = NULL;
    return 0;
}

/* Every rank sends N_PER_PAIR messages to every rank, including itself. */
static inline int random_traffic(lks_group *group, uint64_t seed) {
    enum { MOST = 2 * MAX_TEST_RANKS * N_PER_PAIR };
    int rank = lks_group_rank(group), size = lks_group_size(group), n_lanes = 2 * size, n_items = 0, line;
    static _Thread_local traffic_item items[MOST];
    bool is_send[MOST];
    int n_of_lane[2 * MAX_TEST_RANKS] = {0};
    uint64_t draw = 0;
    while (n_items < n_lanes * N_PER_PAIR) { /* the messages of a lane in order, the lanes at random */
        int lane = (int)lksi_random_below(seed + 1, (uint64_t)rank, draw++, (uint64_t)n_lanes), peer = lane / 2;
        if (n_of_lane[lane] == N_PER_PAIR) continue;
        is_send[n_items] = lane % 2 == 0;
        items[n_items] = (traffic_item){
            .k = n_of_lane[lane]++, .from = is_send[n_items] ? rank : peer, .to = is_send[n_items] ? peer : rank};
        line = is_send[n_items] ? send_one(group, seed, &items[n_items]) : post_one(group, seed, &items[n_items]);
        if (line != 0) return line;
        n_items++;
    }
    for (int n_left = n_items; n_left > 0;) {
        int i = (int)lksi_random_below(seed + 2, (uint64_t)rank, draw++, (uint64_t)n_items), is_done;
        if (items[i].work == NULL) continue;
        if (draw % 3 == 0) MUST_OK(lks_work_test(items[i].work, &is_done));
        line = finish_one(seed, &items[i], is_send[i]);
        if (line != 0) return line;
        n_left--;
    }
    return 0;
}

#endif
