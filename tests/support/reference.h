#pragma once
// Reference values of other libraries, from JSON files.

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "tests/support/data.h"

namespace mixtape::test {

using nlohmann::json;

inline json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }
inline json read_reference(const std::string& name) { return read_json(data_file(name)); }

inline Shape shape_of(const json& j) { return Shape(j.at("shape").get<std::vector<int64_t>>()); }

}  // namespace mixtape::test
