// The same from C++, with a class around a model: it starts with an error or is ready, and gives its memory back.
#include <array>
#include <cstdio>
#include <stdexcept>

#include "decoder.h"
#include "encoder.h"

class Models {
 public:
  explicit Models(int threads) {
    check(encoder_start(threads), encoder_error);
    check(decoder_start(threads), decoder_error);
  }
  ~Models() {
    encoder_stop();
    decoder_stop();
  }
  Models(const Models &) = delete;

  std::array<float, 8> operator()(const std::array<float, 8> &x, float scale) const {
    std::array<float, 6> code;
    std::array<float, 8> y;
    const void *encoded[] = {x.data()}, *decoded[] = {code.data(), &scale};
    void *codes[] = {code.data()}, *results[] = {y.data()};
    check(encoder_run(encoded, codes), encoder_error);
    check(decoder_run(decoded, results), decoder_error);
    return y;
  }

 private:
  static void check(int error, const char *(*words)(int)) {
    if (error) throw std::runtime_error(words(error));
  }
};

int main() try {
  const Models models(1);
  const auto y = models({1, 0, -1, 0.5f, 0, 2, 0, -2}, 2);
  for (int i = 0; i < 2; i++) std::printf("%8.5f %8.5f %8.5f %8.5f\n", y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
