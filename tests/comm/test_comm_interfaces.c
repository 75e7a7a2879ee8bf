/* comm/: which of its addresses rank 0 can be reached at, if MPI says who the ranks are. */
#include "test.h"

#include "comm/transport/mpi/interfaces.h"

static void ranks_of_one_network_namespace_meet_on_loopback(void **state) {
    (void)state;
    lksi_interfaces listed;
    lksi_interfaces_list(&listed, true);
    assert_int_equal(listed.n, 1);
    assert_string_equal(lksi_interfaces_choose(&listed, UINT64_MAX), "127.0.0.1");
}

/* An own address cannot identify another machine: the bridges of containers have the same address on all machines. */
static void an_address_that_is_ones_own_is_another_machine_s(void **state) {
    (void)state;
    lksi_interfaces listed;
    lksi_interfaces_list(&listed, false);
    assert_true(listed.n >= 0 && listed.n <= LKSI_MAX_INTERFACES);
    assert_int_equal(lksi_interfaces_reach(&listed), 0);
    listed = (lksi_interfaces){.n = 2, .addresses = {"127.0.0.1", "127.0.0.2"}};
    assert_int_equal(lksi_interfaces_reach(&listed) & 3, 2); /* only the second address is not this machine's own */
}

static void a_common_network_goes_before_a_route(void **state) {
    (void)state;
    const lksi_interfaces three = {.n = 3, .addresses = {"10.0.0.1", "10.0.1.1", "10.0.2.1"}};
    const uint64_t on_link = 1, routed = UINT64_C(1) << 32;
    assert_string_equal(lksi_interfaces_choose(&three, on_link << 2 | routed), "10.0.2.1");
    assert_string_equal(lksi_interfaces_choose(&three, routed << 1 | routed << 2), "10.0.1.1");
    assert_string_equal(lksi_interfaces_choose(&three, UINT64_MAX), "10.0.0.1");
    assert_null(lksi_interfaces_choose(&three, 0));
    assert_null(lksi_interfaces_choose(&three, on_link << 3)); /* the index is out of range */
}

static void nothing_is_no_address(void **state) {
    (void)state;
    const lksi_interfaces empty = {.n = 1};
    assert_int_equal(lksi_interfaces_reach(&empty), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_network_namespace_meet_on_loopback),
        cmocka_unit_test(an_address_that_is_ones_own_is_another_machine_s),
        cmocka_unit_test(a_common_network_goes_before_a_route),
        cmocka_unit_test(nothing_is_no_address),
    };
    return run_group(tests);
}
