#ifndef SPARROW_TESTS_DENSE_MODEL_CASES_H_
#define SPARROW_TESTS_DENSE_MODEL_CASES_H_

// Small models of every form, for the tests of both halves.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dense/model.h"

namespace sparrow {

inline v1::ModelConfig ParseModel(const std::string& text) {
  v1::ModelConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

struct ModelCase {
  const char* name;
  const char* config;
  uint32_t dense_columns;
  std::vector<uint32_t> dims;
};

inline const std::vector<ModelCase> kModelCases = {
    {"Dlrm", "dlrm { bottom: 9 bottom: 8 top: 11 top: 5 top: 1 }", 4, {8, 8, 8}},
    {"DlrmLinearBottom", "dlrm { bottom: 9 bottom: 8 bottom_output: LINEAR top: 11 top: 5 top: 1 }", 4, {8, 8, 8}},
    {"DlrmDim1", "dlrm { bottom: 1 top: 3 top: 1 }", 2, {1, 1}},
    {"DlrmWithoutDense", "dlrm { top: 7 top: 1 }", 0, {5, 5, 5, 5}},
    {"DlrmWithoutFeatures", "dlrm { bottom: 6 bottom: 4 top: 3 top: 1 }", 3, {}},
    {"DlrmOneLayerTop", "dlrm { bottom: 16 top: 1 }", 13, {16, 16, 16, 16, 16, 16}},
    {"Dcnv2", "dcnv2 { bottom: 7 bottom: 5 cross_layers: 3 cross_rank: 4 top: 6 top: 1 }", 4, {3, 1, 8}},
    {"Dcnv2WithoutDense", "dcnv2 { cross_layers: 2 cross_rank: 9 top: 4 top: 1 }", 0, {2, 10}},
    {"Dcnv2DenseWithoutBottom", "dcnv2 { cross_layers: 1 cross_rank: 3 top: 4 top: 1 }", 5, {2, 3}},
    {"Dcnv2WithoutFeatures", "dcnv2 { bottom: 6 cross_layers: 2 cross_rank: 2 top: 1 }", 3, {}},
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_DENSE_MODEL_CASES_H_
