//! Steps that change which rows larder's role sees: policies, and what policies read.

use crate::histories::step::{HistoryStep, Message, StepGenerator};

/// Where policies are drawn, the database has these beside the families.
pub(super) fn setup(role: &str) -> String {
    format!(
        "create table perm (part int primary key, until timestamptz); \
         insert into perm select n, now() + interval '1 day' from generate_series(0, 60, 2) n; \
         create function visible(part int) returns bool language sql stable as 'select part > 10'; \
         grant select on perm to {role}; grant all on schema public to {role}; "
    )
}

/// Whether a row is shown: by its own columns, and by all else that a policy can ask.
fn condition(draw: &mut StepGenerator<'_>) -> String {
    let part = draw.rng.usize(..60);
    match draw.rng.usize(..9) {
        0 => "true".to_owned(),
        1 => format!("part > {part}"),
        2 => format!("part % 3 <> {}", part % 3),
        3 => "label not like '%1%'".to_owned(),
        4 => format!(
            "exists (select from perm p where p.part = {part} or p.part = 2 * (p.part / 2))"
        ),
        5 => "exists (select from perm p where p.part = 4 and p.until > now())".to_owned(),
        6 => "visible(part)".to_owned(),
        7 => format!("pg_has_role(current_user, '{}_group', 'member')", draw.role),
        _ => format!("(select count(*) from perm) > {}", part / 2),
    }
}

pub(super) fn policy(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    if !draw.plan.policies {
        return None;
    }
    let prefix = draw.family().prefix;
    let followed: Vec<String> = draw
        .tables(prefix)
        .iter()
        .map(|table| table.name.clone())
        .filter(|name| draw.is_followed(name))
        .collect();
    // The policies of an ancestor or a partition apply to statements that name it.
    let table = if draw.once_in(5) {
        draw.target(prefix).replace("_v", "")
    } else {
        draw.one_of(&followed)?.clone()
    };
    let name = ["p0", "p1", "p2"][draw.rng.usize(..3)];
    let kind = if draw.once_in(3) {
        "restrictive"
    } else {
        "permissive"
    };
    let to = if draw.once_in(5) {
        format!("{}_group", draw.role)
    } else {
        "public".to_owned()
    };
    let enable = format!(
        "alter table {table} enable row level security; alter table {table} force row level security"
    );
    let condition = condition(draw);
    let sql = match draw.rng.usize(..8) {
        0 => format!("alter table {table} disable row level security"),
        1 => format!("drop policy if exists {name} on {table}"),
        2 => format!("alter policy {name} on {table} using ({condition})"),
        3 => {
            let sql = format!(
                "{enable}; drop policy if exists {name} on {table}; do $do$ begin execute format( \
                 'create policy {name} on {table} using (now() < %L)', clock_timestamp() + interval '0.5 s'); end $do$"
            );
            let mut step = HistoryStep::sql("policy", sql);
            step.pending_ms = 600;
            return Some(step);
        }
        _ => format!(
            "{enable}; drop policy if exists {name} on {table}; \
             create policy {name} on {table} as {kind} to {to} using ({condition})"
        ),
    };
    Some(HistoryStep::sql("policy", sql))
}

pub(super) fn ground(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    if !draw.plan.policies {
        return None;
    }
    let (role, part) = (draw.role, draw.rng.usize(..60));
    let sql = match draw.rng.usize(..8) {
        0 => format!(
            "insert into perm values ({part}) on conflict (part) do update set until = null"
        ),
        1 => format!("delete from perm where part < {part}"),
        2 => "update perm set until = now() + interval '1 day' * (1 - 2 * (part % 2))".to_owned(),
        3 => format!(
            "create or replace function visible(part int) returns bool language sql stable as 'select part < {part}'"
        ),
        4 => format!("grant {role}_group to {role}"),
        5 => format!("revoke {role}_group from {role}"),
        6 => format!("alter role {role} bypassrls"),
        _ => format!("alter role {role} nobypassrls"),
    };
    Some(HistoryStep::new("policy's ground", vec![Message::Sql(sql)]))
}
