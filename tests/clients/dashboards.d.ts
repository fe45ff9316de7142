// The dashboards' JSON in the types of Grafana's schema: known fields only, and values that Grafana accepts.
import type * as grafana from "@grafana/schema";
import type * as heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as stateTimeline from "@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// JSON has the values of enums, and Grafana sets absent fields to their defaults.
type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : unknown extends T
      ? any
      : T extends (infer Item)[]
        ? Json<Item>[]
        : { [Field in keyof T]?: Json<T[Field]> };

type Target = { refId: string; datasource: grafana.DataSourceRef; expr: string; legendFormat?: string; format?: "heatmap" };
type FieldConfig<Custom> = Omit<grafana.FieldConfigSource, "defaults"> & {
  defaults: Omit<grafana.FieldConfig, "custom"> & { custom?: Custom };
};
type Shared = Omit<grafana.Panel, "type" | "title" | "gridPos" | "targets" | "options" | "fieldConfig">;
type PanelOf<Type extends string, Options, Custom> = Json<Shared> & {
  type: Type;
  title: string;
  gridPos: Json<grafana.GridPos>;
  targets: Target[];
  options: Json<Options>;
  fieldConfig: Json<FieldConfig<Custom>>;
};

type Panel =
  | PanelOf<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | PanelOf<"stat", stat.Options, never>
  | PanelOf<"state-timeline", stateTimeline.Options, stateTimeline.FieldConfig>
  | PanelOf<"heatmap", heatmap.Options, heatmap.FieldConfig>;
type Row = Json<Omit<grafana.RowPanel, "type" | "panels">> & { type: "row"; panels: Panel[] };

// Fields of the data source for Prometheus, which the schema of dashboards leaves to it.
type Query = { expr: string; step: string; titleFormat: string; textFormat: string; tagKeys: string };
type Annotation = Json<grafana.AnnotationQuery> & Query;

export type Dashboard = Json<Omit<grafana.Dashboard, "panels" | "annotations">> & {
  annotations: { list: Annotation[] };
  uid: string;
  title: string;
  schemaVersion: number;
  panels: (Panel | Row)[];
};
