-- fragment: template_view
-- The columns of `TemplateRow`, in order.
SELECT
    t.id, t.name, t.version, t.created_at, t.updated_at, t.archived_at,
    v.version, v.kind, v.kind_version, v.payload, v.secrets, v.plan, v.description, v.created_at
FROM {template} AS t
JOIN {template_version} AS v ON v.template_id = t.id

-- name: lock_template
SELECT id
FROM {template}
WHERE name = :name
{for_update}

-- name: read_template
-- At this version, else at its newest.
{template_view}
WHERE t.name = :name AND v.version = COALESCE(:version, t.version)

-- name: read_template_by_id
{template_view}
WHERE t.id = :template_id AND v.version = COALESCE(:version, t.version)

-- name: list_templates
{template_view}
WHERE v.version = t.version
ORDER BY t.name

-- name: list_template_versions
{template_view}
WHERE t.name = :name
ORDER BY v.version DESC

-- name: insert_template
INSERT INTO {template} (id, name, version, created_at, updated_at)
VALUES (:id, :name, 1, :now, :now)
{unless_known}

-- name: insert_template_version
INSERT INTO {template_version} (
    template_id, version, kind, kind_version, payload, secrets, plan, description, created_at
)
VALUES (:template_id, :version, :kind, :kind_version, :payload, :secrets, :plan, :description, :now)

-- name: set_template_version
UPDATE {template}
SET version = :version, updated_at = :now
WHERE id = :template_id AND version = :expected

-- name: set_template_archived
UPDATE {template}
SET archived_at = :archived_at, updated_at = :now
WHERE id = :template_id

-- name: rename_template
UPDATE {template}
SET name = :new_name, updated_at = :now
WHERE id = :template_id
