/* Two compiled models in one program. */
#include <stdio.h>

#include "decoder.h"
#include "encoder.h"

int main(void) {
  const float x[2][4] = {{1, 0, -1, 0.5f}, {0, 2, 0, -2}}, scale = 2;
  float code[2][3], y[2][4];

  int error = encoder_run((const void *const[]){x}, (void *const[]){code});
  if (error) {
    fprintf(stderr, "encoder: %s\n", encoder_error(error));
    return 1;
  }
  error = decoder_run((const void *const[]){code, &scale}, (void *const[]){y});
  if (error) {
    fprintf(stderr, "decoder: %s\n", decoder_error(error));
    return 1;
  }
  for (int i = 0; i < 2; i++) printf("%8.5f %8.5f %8.5f %8.5f\n", y[i][0], y[i][1], y[i][2], y[i][3]);
  return 0;
}
