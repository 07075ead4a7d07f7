/* mpi.h: the communicator of a device that is a process of an MPI job; what mpi.c has for its users.
 *
 *   MPI_Init(&argc, &argv);
 *   hloc_communicator *own = hloc_mpi_new(MPI_COMM_WORLD);      the rank is the device; NULL: no memory
 *   encoder_run(own, inputs, results);
 *   hloc_mpi_free(own);                                         all processes at the same time
 */
#pragma once
#include <mpi.h>
#include "communicator.h"
#if defined(__cplusplus)
extern "C" {
#endif

hloc_communicator *hloc_mpi_new(MPI_Comm world);
void hloc_mpi_free(hloc_communicator *own);
/* How long a process waits for others at a collective; at first 600 seconds. */
void hloc_mpi_set_seconds(hloc_communicator *own, double seconds);
#if defined(__cplusplus)
}
#endif
