/* ResNet9, the model of examples/resnet9. */
#include "resnet9_model.h"

#include <stdio.h>

/* Convolution (which keeps the size of the image, apart from its stride), batch norm, ReLU. */
static lks_node *conv_bn(lks_node *x, int64_t channels, int64_t kernel, int64_t stride, const char *name,
                         const lks_batch_norm_options *norm) {
    char part[64];
    lks_initializer kaiming = lks_kaiming_uniform(lks_node_dim(x, 1) * kernel * kernel);
    lks_conv2d_options options = {.window = {.stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}},
                                  .weight = &kaiming};
    snprintf(part, sizeof part, "%s.0", name);
    x = lks_conv2d(x, channels, kernel, part, &options);
    snprintf(part, sizeof part, "%s.1", name);
    return lks_relu(lks_batch_norm_with(x, part, norm));
}

static lks_node *residual(lks_node *x, const char *name, const lks_batch_norm_options *norm) {
    char part[32];
    int64_t channels = lks_node_dim(x, 1);
    snprintf(part, sizeof part, "%s.0", name);
    lks_node *y = conv_bn(x, channels, 3, 1, part, norm);
    snprintf(part, sizeof part, "%s.1", name);
    return lks_add(conv_bn(y, channels, 3, 1, part, norm), x);
}

lks_node *resnet9(lks_node *x) { return resnet9_with(x, NULL); }

lks_node *resnet9_with(lks_node *x, const lks_batch_norm_options *norm) {
    x = conv_bn(x, 16, 7, 4, "conv1", norm);
    x = conv_bn(x, 32, 3, 2, "conv2", norm);
    x = residual(x, "res1", norm);
    x = conv_bn(x, 64, 3, 2, "conv3", norm);
    x = conv_bn(x, 128, 3, 2, "conv4", norm);
    x = residual(x, "res2", norm);
    x = lks_reshape(x, 2, (int64_t[]){LKS_BATCH, 128});
    x = lks_relu(lks_linear(x, 128, "classifier.1"));
    return lks_linear(x, 10, "classifier.3");
}
