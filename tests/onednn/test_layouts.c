/* labels: no-tsan */
/* The oneDNN kernels that convolutions get: those with layouts known to the library, not those for row-major
 * tensors. */
#include "test.h"

#include "base/isa.h"
#include "onednn/api.h"

/* ResNet9's second convolution, with strides. The first choice of oneDNN 3.7 is a layout of the weights that has no
 * name here. Its kernel for row-major tensors takes two hundred times as long as its second choice. */
static void the_gradient_of_a_strided_convolution_is_laid_out_in_blocks(void **state) {
    (void)state;
#if LKSI_HAS_ONEDNN
    if (lksi_isa_level() < 1) {
        printf("skipped: this CPU has no AVX2\n");
        skip();
    }
    static const lksi_op ops[] = {LKSI_OP_CONV2D, LKSI_OP_CONV2D_GRAD_INPUT, LKSI_OP_CONV2D_GRAD_WEIGHT};
    const lksi_attributes attributes = {.stride = {2, 2}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 1};
    const lksi_tensor x = {LKS_F32, 4, {64, 16, 8, 8}}, w = {LKS_F32, 4, {32, 16, 3, 3}},
                      y = {LKS_F32, 4, {64, 32, 4, 4}};
    for (int i = 0; i < 3; i++) {
        lksi_dnnl_primitive *primitive = NULL;
        lksi_dnnl_convolution c = {
            .op = ops[i], .attributes = &attributes, .x = &x, .w = &w, .y = &y, .product_type = LKS_F32};
        assert_ok(lksi_dnnl_convolution_create(&primitive, &c));
        if (c.x_layout.id == 0 || c.w_layout.id == 0 || c.y_layout.id == 0)
            fail_msg("%s takes tensors as they are", lksi_op_name(ops[i]));
        lksi_dnnl_primitive_destroy(primitive);
    }
#else
    printf("skipped: this build has no oneDNN\n");
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_of_a_strided_convolution_is_laid_out_in_blocks),
    };
    return run_group(tests);
}
