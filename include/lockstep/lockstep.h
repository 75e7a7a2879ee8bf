/* Lockstep: all rooms of the library. A program that needs only one room includes only the header of that room. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/base.h>
#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/device.h>
#include <lockstep/gpu.h>
#include <lockstep/graph.h>
#include <lockstep/launch.h>
#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/train.h>

#endif
