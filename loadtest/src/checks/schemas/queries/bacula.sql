-- Statements such as those of Bacula's director.
select jobid, jobtdate, job, jobstatus from job where name = $1 and type = 'B' and jobstatus in ('T', 'W') order by starttime desc limit 1;
select jobid from job where clientid = $1 and jobtdate < $2 order by jobtdate;
select jobid, starttime from job where clientid = $1 and filesetid = $2 and starttime > $3;
select f.fileid, p.path, n.name from file f join path p on p.pathid = f.pathid join filename n on n.filenameid = f.filenameid
  where f.jobid = $1 order by f.fileindex;
select f.fileid, f.lstat from file f where f.pathid = $1 and f.filenameid = $2;
select pathid from path where path like '/home/%';
select filenameid from filename where name = $1;
select mediaid, volumename, volstatus from media where poolid = $1 and mediatype = $2 and enabled = 1 and volstatus = $3 order by lastwritten;
select mediaid from media where volumename like 'Vol-%' order by mediaid;
select m.volumename, jm.firstindex, jm.lastindex from jobmedia jm join media m on m.mediaid = jm.mediaid where jm.jobid = $1 order by jm.volindex;
select distinct jobid from jobmedia where mediaid = $1;
select time, logtext from log where jobid = $1 order by logid;
select v.pathid, v.size, v.files from pathvisibility v where v.pathid = $1;
delete from file where jobid = $1;
update media set volstatus = $1 where volumename = $2;
