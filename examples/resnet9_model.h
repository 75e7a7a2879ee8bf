/* ResNet9, the model of examples/resnet9. */
#ifndef RESNET9_MODEL_H
#define RESNET9_MODEL_H

#include <lockstep/lockstep.h>

/* x (N,3,32,32) -> logits (N,10). It has 431,946 parameters, with the names that PyTorch gives to those of
 *
 *     conv1 to conv4    Sequential(Conv2d, BatchNorm2d, ReLU)            conv1.0.weight, conv1.1.running_mean
 *     res1, res2        Sequential of two such, added to their input     res1.0.0.weight, res1.1.0.weight
 *     classifier        Sequential(Flatten, Linear, ReLU, Linear)        classifier.1.weight, classifier.3.bias
 *
 * Convolutions are initialised Kaiming-uniform, everything else as in PyTorch. */
lks_node *resnet9(lks_node *x);
/* The same with options for every batch norm. */
lks_node *resnet9_with(lks_node *x, const lks_batch_norm_options *norm);

#endif
