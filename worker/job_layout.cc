#include "worker/job_layout.h"

#include "base/check.h"
#include "worker/schema_check.h"

namespace sparrow {

const std::string& TableNameOf(const v1::FeatureConfig& feature) {
  return feature.has_table() ? feature.table() : feature.name();
}

const std::string& ColumnNameOf(const v1::FeatureConfig& feature) {
  return feature.has_column() ? feature.column() : feature.name();
}

std::vector<TableShape> JobLayout::Shapes() const {
  std::vector<TableShape> shapes;
  for (const Table& table : tables) shapes.push_back({.dim = table.dim, .evicts = table.evicts});
  return shapes;
}

std::vector<uint32_t> JobLayout::FeatureDims() const {
  std::vector<uint32_t> dims;
  for (const Feature& feature : features) dims.push_back(feature.dim);
  return dims;
}

std::vector<uint64_t> JobLayout::FeatureRows() const {
  std::vector<uint64_t> rows;
  for (const Feature& feature : features) rows.push_back(tables[feature.table].bounded_rows);
  return rows;
}

namespace {

// Ids that a sample can have of a feature; 0: any number.
uint32_t IdsMax(const v1::DataConfig& data, const v1::FeatureConfig& feature) {
  if (data.has_dlrm_npy()) return feature.bag_size();
  if (data.has_criteo()) return 1;
  for (const v1::Column& column : data.text().columns()) {
    if (column.name() == ColumnNameOf(feature)) return column.categorical().separator().empty() ? 1 : 0;
  }
  return 0;
}

}  // namespace

JobLayout MakeJobLayout(const v1::Job& job) {
  JobLayout layout;
  for (const v1::TableConfig& table : job.tables()) {
    layout.tables.push_back({.name = table.name(),
                             .dim = table.dim(),
                             .evicts = table.has_eviction(),
                             .bounded_rows = table.bounded_rows(),
                             .features = {}});
  }
  for (const v1::FeatureConfig& config : job.features()) {
    uint32_t table = 0;
    while (table < layout.tables.size() && layout.tables[table].name != TableNameOf(config)) ++table;
    CHECK_LT(table, layout.tables.size()) << config.name();
    layout.tables[table].features.push_back(static_cast<uint32_t>(layout.features.size()));
    layout.features.push_back({.name = config.name(),
                               .table = table,
                               .dim = layout.tables[table].dim,
                               .column = layout.sparse_columns,
                               .pooling = config.pooling() == v1::FeatureConfig::MEAN ? Pooling::kMean : Pooling::kSum,
                               .ids_max = IdsMax(job.data(), config)});
    layout.sparse_columns += layout.features.back().dim;
  }
  layout.dense_columns = DenseColumnCount(job.data());
  return layout;
}

}  // namespace sparrow
