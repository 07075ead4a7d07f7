/* threads.h: communicators of devices that are threads of one process; what threads.c has for its users.
 *
 *   hloc_devices *all = hloc_devices_new(4);                    NULL: no memory
 *   in thread d:  encoder_run(hloc_devices_of(all, d), inputs[d], results[d]);     all devices at the same time, again
 *   hloc_devices_free(all);                                     and again, as long as none fails
 */
#pragma once
#include "communicator.h"
#if defined(__cplusplus)
extern "C" {
#endif

typedef struct hloc_devices hloc_devices;
#define HLOC_SHARED __attribute__((visibility("default")))
HLOC_SHARED hloc_devices *hloc_devices_new(int devices);
HLOC_SHARED void hloc_devices_free(hloc_devices *all);
HLOC_SHARED hloc_communicator *hloc_devices_of(hloc_devices *all, int device);
/* No device runs: forget how the last run ended, and what was sent and not received. */
HLOC_SHARED void hloc_devices_reset(hloc_devices *all);
/* A device does not come to any collective until the next reset: who waits for it fails. */
HLOC_SHARED void hloc_devices_leave(hloc_devices *all, int device);
/* Whoever waits, or will wait, fails. */
HLOC_SHARED void hloc_devices_stop(hloc_devices *all);
/* out = n elements of `count` arrays, combined in their order. */
HLOC_SHARED void hloc_combine_parts(const hloc_block *block, int count, const void *const *parts, int64_t n, void *out);
#if defined(__cplusplus)
}
#endif
