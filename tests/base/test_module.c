/* Where modules are searched. */
#include "test.h"

#include "base/module.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static lksi_module module_at(const char *place) {
    setenv("LKSI_TEST_MODULE", place, 1);
    return (lksi_module){.name = "lockstep-test", .variable = "LKSI_TEST_MODULE", .version = 1};
}

static void a_name_without_a_slash_is_a_file_here(void **state) {
    (void)state;
    char here[4096], directory[] = "/tmp/lockstep-module-XXXXXX";
    const void *table;
    assert_non_null(getcwd(here, sizeof here));
    assert_non_null(mkdtemp(directory));
    assert_int_equal(chdir(directory), 0);
    assert_int_equal(lksi_file_write_atomic("module.so", "no module", 9), LKS_OK);
    lksi_module m = module_at("module.so");
    assert_true(lksi_module_find(&m));
    assert_int_equal(lksi_module_open(&m, RTLD_NOW, "table", &table), LKS_ERR_UNSUPPORTED);
    assert_non_null(strstr(lks_error_text(), "module.so: file too short")); /* the file was found, but is no module */
    unlink("module.so");
    assert_int_equal(chdir(here), 0);
    rmdir(directory);
}

static void a_place_without_a_module_is_named_once(void **state) {
    (void)state;
    lksi_module m = module_at("/nowhere");
    assert_false(lksi_module_find(&m));
    assert_string_equal(m.tried, "LKSI_TEST_MODULE (/nowhere)");
}

static void a_place_that_is_too_long_is_not_cut(void **state) {
    (void)state;
    char place[1501];
    memset(place, 'x', sizeof place - 1);
    place[sizeof place - 1] = '\0';
    lksi_module m = module_at(place);
    assert_false(lksi_module_find(&m));
    assert_string_equal(m.tried, "LKSI_TEST_MODULE, whose 1500 bytes exceed the limit of 960");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_without_a_slash_is_a_file_here),
        cmocka_unit_test(a_place_without_a_module_is_named_once),
        cmocka_unit_test(a_place_that_is_too_long_is_not_cut),
    };
    return run_group(tests);
}
