-- Put after every script, whose body is the function `main`.
local done, answer = pcall(function()
  begin()
  return main()
end)
if done then
  return answer
end
if type(answer) == 'table' then
  -- A refusal, or an error of the server, such as OOM.
  return answer.refusal or { err = answer.err }
end
-- Some of the server's errors come as text, with the place before it.
local said = string.gsub(tostring(answer), '^.*@user_script: *%d+: *', '')
said = string.match(said, '^%-?([A-Z]+ .*)$') or 'SCRIPTERROR ' .. said
return { err = said }
